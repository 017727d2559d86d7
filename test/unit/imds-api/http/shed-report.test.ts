import { expect, test } from 'vitest'
import { buildShedReport } from '../../../../src/imds-api/http/shed-report.ts'

test('every request is counted, and a warning a minute says how many there were', () => {
  let now = 0
  const [counted, warned]: [string[], object[]] = [[], []]
  const shed = buildShedReport({
    count: (queue) => counted.push(queue),
    now: () => now,
    log: {
      warn: (fields: object) => warned.push(fields),
    },
  })
  shed('reads', 'acc-one01')
  shed('reads', 'acc-one01')
  shed('tokens', '192.0.2.1')
  now = 59_999
  shed('reads', 'acc-one01')
  expect(warned).toEqual([{ code: 'requests-shed', queue: 'reads', owner: 'acc-one01', requests: 1 }])
  now = 60_000
  shed('bodies', 'acc-two02')
  expect(warned.slice(1)).toEqual([{ code: 'requests-shed', queue: 'bodies', owner: 'acc-two02', requests: 4 }])
  expect(counted).toEqual(['reads', 'reads', 'tokens', 'reads', 'bodies'])
})
