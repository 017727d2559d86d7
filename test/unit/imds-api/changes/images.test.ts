import { expect, test } from 'vitest'
import {
  IMAGE_STATES,
  imageAfter,
  imageState,
  type ImageTransition,
  type ImageState,
} from '../../../../src/imds-api/changes/images.ts'

/** Each state: the transitions that are possible, and the state after each. */
const TABLE: Record<ImageState, Partial<Record<ImageTransition, ImageState>>> = {
  creating: { complete: 'available', fail: 'failed' },
  available: { deprecate: 'deprecated', restore: 'available', delete: 'deleting', forget: 'deleted' },
  deprecated: { deprecate: 'deprecated', restore: 'available', delete: 'deleting', forget: 'deleted' },
  failed: { delete: 'deleting', forget: 'deleted' },
  deleting: { erase: 'deleted', fail: 'failed' },
  deleted: {},
}
const TRANSITIONS = [
  'complete',
  'fail',
  'deprecate',
  'restore',
  'delete',
  'erase',
  'forget',
] as const satisfies readonly ImageTransition[]

test.each(IMAGE_STATES)('an image that is %s moves by these transitions only', (state) => {
  const after = TRANSITIONS.map((name) => [name, imageAfter(state, name)])
  expect(after).toEqual(TRANSITIONS.map((name) => [name, TABLE[state][name]]))
})

test('a status that only the region file knows counts as failed', () => {
  expect(TRANSITIONS.map((name) => imageAfter(imageState('beta'), name))).toEqual(
    TRANSITIONS.map((name) => TABLE.failed[name]),
  )
})
