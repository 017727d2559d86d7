import { expect, test } from 'vitest'
import { parseEventOptions } from '../../../src/metadata/event-options.ts'

test('options ask for one change, or for none', () => {
  expect(parseEventOptions({})).toEqual({ ok: true, value: undefined })
  expect(parseEventOptions({ complete: 'evt-1' })).toEqual({
    ok: true,
    value: { kind: 'end', id: 'evt-1', state: 'completed' },
  })
  expect(parseEventOptions({ code: 'system-reboot', notBefore: '2026-11-20T15:04:05Z' })).toMatchObject({
    value: {
      kind: 'schedule',
      event: { id: expect.stringMatching(/^evt-[0-9a-f]{10}$/) as string, description: 'system-reboot' },
    },
  })
  for (const both of [
    { complete: 'a', cancel: 'b' },
    { complete: 'a', code: 'x' },
    { cancel: 'a', event: 'b' },
  ])
    expect(parseEventOptions(both).ok).toBe(false)
})
