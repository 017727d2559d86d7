import { expect, test } from 'vitest'
import { EXIT } from '../../../src/runtime/exit-status.ts'

test('each exit status has one meaning, and those beyond 2 are of sysexits.h or a temporary failure', () => {
  const statuses = Object.values(EXIT)
  expect(new Set(statuses).size).toBe(statuses.length)
  expect(statuses.filter((status) => status > 2 && (status < 64 || status > 78))).toEqual([])
  expect([EXIT.done, EXIT.usage, EXIT.badData, EXIT.noInput, EXIT.unavailable, EXIT.timeout, EXIT.badConfig]).toEqual([
    0, 64, 65, 66, 69, 75, 78,
  ])
})
