/** The metric of conditions: a series for each row of a table, which is 1 while its condition is found. */
import { Gauge, type Registry } from 'prom-client'
import type { Condition, FoundCondition } from './condition.ts'

export function declareConditions(
  registry: Registry,
  table: readonly Pick<Condition<never>, 'code' | 'severity'>[],
  find: () => readonly FoundCondition[] | Promise<readonly FoundCondition[]>,
): void {
  new Gauge({
    name: 'imds_condition',
    help: '1 while something is wrong, by code (conditions.md) and severity: failure, warning.',
    registers: [registry],
    labelNames: ['code', 'severity'] as const,
    async collect() {
      const found = await find()
      for (const { code, severity } of table)
        this.set({ code, severity }, Number(found.some((condition) => condition.code === code)))
    },
  })
}
