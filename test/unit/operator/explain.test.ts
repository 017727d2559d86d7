import { pino } from 'pino'
import { expect, test } from 'vitest'
import { Firewall } from '../../../src/firewall/firewall.ts'
import { explain } from '../../../src/operator/explain.ts'
import { View } from '../../../src/view/view.ts'
import { parsed } from '../../support/fixtures/guest-server.ts'
import { anInstance } from '../../support/fixtures/instance.ts'

test('for a contested address it names the claimants and no other conflict', async () => {
  const view = new View({}, () => 0)
  const firewall = new Firewall({
    required: false,
    link: 'tap-{interfaceId}',
    instances: () => [],
    now: () => 0,
    epoch: 'e',
    firstApplied: () => undefined,
    log: pino({ level: 'silent' }),
  })
  for (const [id, address] of [
    ['srv-a', '10.0.0.2'],
    ['srv-b', '10.0.0.2'],
    ['srv-c', '10.0.0.3'],
    ['srv-d', '10.0.0.3'],
  ] as const) {
    const interfaces = [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`${address}/8`] }]
    view.replace({ instance: parsed(anInstance({ id, interfaces })), userData: undefined, digest: id })
  }
  const diagnosis = { instance: () => Promise.resolve(undefined), address: () => Promise.resolve('') }
  expect(
    await explain(
      {
        view,
        firewall,
        networks: ['default'],
        unserved: [],
        hold: () => undefined,
        diagnosis,
        unreachable: () => undefined,
        recent: () => [],
      },
      'default',
      '10.0.0.2',
    ),
  ).toMatchObject({
    answer: 'contested-address',
    status: 503,
    because: 'more than one instance claims it: 10.0.0.2 by srv-a and srv-b',
  })
})

test('on a network that is not served a guest gets no response, whatever the view has', async () => {
  const view = new View({}, () => 0)
  const firewall = new Firewall({
    required: false,
    link: 'tap-{interfaceId}',
    instances: () => [],
    now: () => 0,
    epoch: 'e',
    firstApplied: () => undefined,
    log: pino({ level: 'silent' }),
  })
  view.replace({
    instance: parsed(
      anInstance({
        interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', network: 'red', ipv4Addresses: ['10.0.0.2/8'] }],
      }),
    ),
    userData: undefined,
    digest: 'a',
  })
  const diagnosis = { instance: () => Promise.resolve(undefined), address: () => Promise.resolve('') }
  const parts = {
    view,
    firewall,
    hold: () => undefined,
    diagnosis,
    unreachable: () => undefined,
    recent: () => [],
    unserved: [{ network: 'red', problem: 'its socket has no link' }],
  }
  expect(await explain({ ...parts, networks: [] }, 'red', '10.0.0.2')).toEqual({
    network: 'red',
    address: '10.0.0.2',
    answer: 'no-listener',
    because: 'its socket has no link',
  })
  expect(await explain({ ...parts, networks: [] }, 'blue', '10.0.0.2')).toMatchObject({
    because: 'this daemon does not serve network blue; it serves none',
  })
})

test('while no guest is answered, it says why, and names no instance', async () => {
  const view = new View({}, () => 0)
  const firewall = new Firewall({
    required: true,
    link: 'tap-{interfaceId}',
    instances: () => [],
    now: () => 0,
    epoch: 'e',
    firstApplied: () => undefined,
    log: pino({ level: 'silent' }),
  })
  view.replace({ instance: parsed(anInstance({})), userData: undefined, digest: 'a' })
  const diagnosis = { instance: () => Promise.resolve(undefined), address: () => Promise.resolve('') }
  expect(
    await explain(
      {
        view,
        firewall,
        networks: ['default'],
        unserved: [],
        hold: () => 'no rules yet',
        diagnosis,
        unreachable: () => undefined,
        recent: () => [],
      },
      'default',
      '10.0.0.2',
    ),
  ).toEqual({ network: 'default', address: '10.0.0.2', answer: 'unknown-peer', status: 503, because: 'no rules yet' })
})
