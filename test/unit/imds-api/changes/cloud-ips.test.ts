import { expect, test } from 'vitest'
import { cloudIpAfter, type CloudIpTransition } from '../../../../src/imds-api/changes/cloud-ips.ts'
import type { CloudIpStatus } from '../../../../src/imds-api/model/resources.ts'

/** Each state: the transitions that are possible, and the state after each. */
const TABLE: Record<CloudIpStatus, Partial<Record<CloudIpTransition, CloudIpStatus>>> = {
  unmapped: { map: 'mapped', reserve: 'reserved' },
  reserved: { confirm: 'mapped', release: 'unmapped' },
  mapped: { unmap: 'unmapped', release: 'unmapped' },
}
const TRANSITIONS = ['map', 'unmap', 'reserve', 'confirm', 'release'] as const satisfies readonly CloudIpTransition[]

test.each(Object.entries(TABLE))('a cloud IP that is %s moves by these transitions only', (status, possible) => {
  const after = TRANSITIONS.map((name) => [name, cloudIpAfter(status as CloudIpStatus, name)])
  expect(after).toEqual(TRANSITIONS.map((name) => [name, possible[name]]))
})
