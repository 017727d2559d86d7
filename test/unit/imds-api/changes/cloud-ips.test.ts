import { expect, test } from 'vitest'
import { cloudIpAfter, type CloudIpEvent } from '../../../../src/imds-api/changes/cloud-ips.ts'
import type { CloudIpStatus } from '../../../../src/imds-api/model/resources.ts'

/** Each state: the events that are possible, and what follows. */
const TABLE: Record<CloudIpStatus, Partial<Record<CloudIpEvent, CloudIpStatus>>> = {
  unmapped: { map: 'mapped', reserve: 'reserved' },
  reserved: { confirm: 'mapped', release: 'unmapped' },
  mapped: { unmap: 'unmapped', release: 'unmapped' },
}
const EVENTS = ['map', 'unmap', 'reserve', 'confirm', 'release'] as const satisfies readonly CloudIpEvent[]

test.each(Object.entries(TABLE))('a cloud IP that is %s moves by these events, and by no other', (status, possible) => {
  const after = EVENTS.map((event) => [event, cloudIpAfter(status as CloudIpStatus, event)])
  expect(after).toEqual(EVENTS.map((event) => [event, possible[event]]))
})
