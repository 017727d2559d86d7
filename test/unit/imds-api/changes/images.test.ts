import { expect, test } from 'vitest'
import { IMAGE_STATES, imageAfter, type ImageEvent, type ImageState } from '../../../../src/imds-api/changes/images.ts'

/** Each state: the events that are possible, and what follows. */
const TABLE: Record<ImageState, Partial<Record<ImageEvent, ImageState>>> = {
  creating: { complete: 'available', fail: 'failed' },
  available: { deprecate: 'deprecated', restore: 'available', delete: 'deleting', forget: 'deleted' },
  deprecated: { deprecate: 'deprecated', restore: 'available', delete: 'deleting', forget: 'deleted' },
  failed: { delete: 'deleting', forget: 'deleted' },
  deleting: { erase: 'deleted', fail: 'failed' },
  deleted: {},
  other: { delete: 'deleting', forget: 'deleted' },
}
const EVENTS = [
  'complete',
  'fail',
  'deprecate',
  'restore',
  'delete',
  'erase',
  'forget',
] as const satisfies readonly ImageEvent[]

test.each(IMAGE_STATES)('an image that is %s moves by these events, and by no other', (state) => {
  const after = EVENTS.map((event) => [event, imageAfter(state, event)])
  expect(after).toEqual(EVENTS.map((event) => [event, TABLE[state][event]]))
})

test('a status that only the region file knows counts as other', () => {
  expect(EVENTS.map((event) => imageAfter('beta', event))).toEqual(EVENTS.map((event) => TABLE.other[event]))
})
