import { expect, test } from 'vitest'
import type { Instance } from '../../../../src/metadata/instance.ts'
import { buildLaunchGate, unreachableBy, type LaunchGateParts } from '../../../../src/imdsd/operator/launch-gate.ts'
import { View } from '../../../../src/imdsd/view/view.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { parse } from '../../../../src/metadata/record.ts'

function parsed(change: Record<string, unknown>): Instance {
  const result = parse(anInstance(change))
  if (!result.ok) throw new Error(JSON.stringify(result.faults))
  return result.value
}

function aGate(change: Partial<LaunchGateParts> = {}) {
  const view = new View({}, () => 0, false)
  const put = (instance: Instance, order = 1) =>
    view.replace({ instance, userData: undefined, digest: '', order, lost: [] })
  const firewall = { linkFault: () => undefined, problemOf: () => undefined }
  return {
    put,
    view,
    gate: buildLaunchGate({ view, firewall, networks: ['default'], unreachable: () => undefined, ...change }),
  }
}

const ON_BLUE = [{ id: 'int-blue1', macAddress: '02:24:19:00:00:02', network: 'blue', ipv4Addresses: ['10.9.0.2/24'] }]

test('the gate is open for a served instance, with its revision and its place in the order', () => {
  const { put, gate } = aGate()
  put(parsed({ revision: 4 }))
  expect(gate('srv-abcde')).toEqual({ revision: 4, order: 1 })
})

test('an instance is not served if unknown, on other networks, contested, or without a lost address', () => {
  const { put, gate } = aGate()
  expect(gate('srv-abcde')).toBeUndefined()
  put(parsed({ id: 'srv-blue1', interfaces: ON_BLUE }))
  expect(gate('srv-blue1')).toBeUndefined()
  put(parsed({}))
  put(parsed({ id: 'srv-other' }))
  expect([gate('srv-abcde'), gate('srv-other')]).toEqual([undefined, undefined])
  put(parsed({ id: 'srv-other' }), 2)
  expect([gate('srv-abcde'), gate('srv-other')?.reason]).toEqual([undefined, undefined])
  expect(gate('srv-other')?.revision).toBe(1)
})

test('a link without a valid name holds the guest for ever; a missing listener or the firewall for now', () => {
  const held = (change: Partial<LaunchGateParts>) => {
    const { put, gate } = aGate(change)
    put(parsed({ revision: 2 }))
    return gate('srv-abcde')
  }
  const firewall = { linkFault: () => undefined, problemOf: () => 'not admitted yet' }
  expect(held({ firewall: { ...firewall, linkFault: () => 'no name' } })).toEqual({
    revision: 2,
    order: 1,
    reason: 'no name',
    final: true,
  })
  expect(held({ firewall })).toEqual({
    revision: 2,
    order: 1,
    reason: 'not admitted yet',
  })
  expect(held({ firewall, unreachable: () => 'no address' })).toEqual({
    revision: 2,
    order: 1,
    reason: 'no address',
  })
})

test('a guest is unreachable if the address of a listener on one of its networks is missing', () => {
  let missing: string[] = []
  const unreachable = unreachableBy(
    [
      { network: 'default', host: '10.0.0.1' },
      { network: 'blue', host: '10.9.0.1' },
    ],
    () => missing,
    (address) => `no ${address}`,
  )
  expect(unreachable(parsed({}))).toBeUndefined()
  missing = ['10.9.0.1']
  expect(unreachable(parsed({}))).toBeUndefined()
  expect(unreachable(parsed({ interfaces: ON_BLUE }))).toBe('no 10.9.0.1')
})
