import { expect, test } from 'vitest'
import { ConditionWatch } from '../../../src/conditions/watch.ts'
import type { FoundCondition } from '../../../src/conditions/condition.ts'
import { collectLog } from '../../support/fixtures/collected-log.ts'

const LOST: FoundCondition = { code: 'store-lost', severity: 'failure', text: 'it was lost', remedy: 'start Redis' }

test('a condition is logged once when it begins, and once when it ends with how long it lasted', () => {
  const lines: Record<string, unknown>[] = []
  const clock = { ms: 0 }
  const watch = new ConditionWatch(
    collectLog(() => lines),
    () => clock.ms,
  )
  for (const text of ['it was lost', 'it was lost 1 min ago']) watch.note([{ ...LOST, text }], true)
  clock.ms = 61_000
  watch.note([], false) // it was not looked for
  expect(lines).toHaveLength(1)
  for (let i = 0; i < 2; i++) watch.note([], true)
  watch.note([LOST], true)
  const begun = { level: 40, code: 'store-lost', severity: 'failure', remedy: 'start Redis', msg: 'it was lost' }
  expect(lines).toMatchObject([
    begun,
    { level: 30, code: 'store-lost', seconds: 61, msg: 'store-lost is over after 1 min' },
    begun,
  ])
})
