/** Declares metrics as both programs need them. */
import { collectDefaultMetrics, Counter, Gauge, Registry } from 'prom-client'
import { VERSION } from './installation.ts'

export function buildRegistry(): Registry {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry })
  new Gauge({
    name: 'imds_build_info',
    help: 'Always 1; the labels are the versions of imds and of Node.',
    labelNames: ['version', 'node'],
    registers: [registry],
  }).set({ version: VERSION, node: process.versions.node }, 1)
  return registry
}

/** Declares a gauge that is read at each scrape. Undefined: it is missing. */
type DeclareGauge = (name: string, help: string, read: () => number | undefined | Promise<number | undefined>) => void

export function gaugesOf(registry: Registry): DeclareGauge {
  return (name, help, read) =>
    new Gauge({
      name,
      help,
      registers: [registry],
      async collect() {
        const now = await read()
        if (now === undefined) this.remove()
        else this.set(now)
      },
    })
}

/** A counter with a label, whose series begin with 0. */
export function labelled<T extends string>(
  registry: Registry,
  label: T,
  values: readonly string[],
  about: { readonly name: string; readonly help: string },
): Counter<T> {
  const counter = new Counter({ ...about, registers: [registry], labelNames: [label] })
  for (const value of values) counter.inc({ [label]: value } as Record<T, string>, 0)
  return counter
}
