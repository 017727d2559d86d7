import { expect, test } from 'vitest'
import { cloudIpCanBecome } from '../../../../src/imds-api/changes/cloud-ips.ts'
import { collaborationCanBecome } from '../../../../src/imds-api/changes/collaborations.ts'
import { imageCanBecome } from '../../../../src/imds-api/changes/images.ts'
import { serverCanBecome } from '../../../../src/imds-api/changes/servers.ts'
import { ROWS } from '../../../../src/imds-api/model/resources.ts'
import { COLLABORATION_STATES } from '../../../../src/imds-api/model/collaborations.ts'
import { transitions } from '../../../../src/imds-api/model/transitions.ts'
import type { ServerStatus } from '../../../../src/imds-api/model/server-actions.ts'

const later = <State>(states: readonly State[], can: (to: State) => boolean) => states.filter(can).join(' ')

test('a state follows in any number of steps, also itself if a way leads back', () => {
  const { canBecome: can } = transitions<'a' | 'b' | 'c' | 'd', 'begin' | 'there' | 'back'>({
    begin: { from: ['a'], to: 'b' },
    there: { from: ['b'], to: 'c' },
    back: { from: ['c'], to: 'b' },
  })
  expect([can('a', 'c'), can('b', 'b'), can('a', 'a'), can('c', 'a'), can('d', 'd')]).toEqual([
    true,
    true,
    false,
    false,
    false,
  ])
})

test('a server cannot leave failed and deleting but to be deleted, and nothing makes it creating again', () => {
  const of = (from: ServerStatus) => later(ROWS.server.states, (to) => serverCanBecome(from, to))
  expect(of('creating')).toBe('active inactive deleting deleted failed')
  expect(of('inactive')).toBe('active inactive deleting deleted failed')
  expect(of('failed')).toBe('deleting deleted failed')
  expect(of('deleting')).toBe('deleting deleted failed')
  expect(of('deleted')).toBe('')
})

test('the other tables: what can follow', () => {
  expect(later(ROWS.cloudIp.states, (to) => cloudIpCanBecome('mapped', to))).toBe('unmapped reserved mapped')
  expect(later(COLLABORATION_STATES, (to) => collaborationCanBecome('pending', to))).toBe(
    COLLABORATION_STATES.join(' '),
  )
  expect(later(COLLABORATION_STATES, (to) => collaborationCanBecome('rejected', to))).toBe('')
  const images = ['creating', 'available', 'deprecated', 'failed', 'deleting'] as const
  expect(later(images, (to) => imageCanBecome('available', to))).toBe('available deprecated failed deleting')
  expect(later(images, (to) => imageCanBecome('failed', to))).toBe('failed deleting')
  expect(later(images, (to) => imageCanBecome('a status of the region file', to))).toBe('failed deleting')
})
