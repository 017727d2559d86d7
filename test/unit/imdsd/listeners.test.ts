import { expect, test } from 'vitest'
import { parseListeners } from '../../../src/imdsd/listeners.ts'
import type { PassedSocket } from '../../../src/runtime/systemd.ts'

/** The listeners, as networks, and the faults. */
function listeners(places: string, passed: readonly PassedSocket[] = [], isFirewallRequired = false) {
  const faults: string[] = []
  const { listen, expected, needsFirewall } = parseListeners(places.split(','), passed, isFirewallRequired, (message) =>
    faults.push(message),
  )
  return { networks: listen.map(({ network }) => network), expected, faults, needsFirewall }
}

const NOT_SEPARATE =
  /networks \(.*red.*\) that nothing separates, and a guest of one could read the records of another: enable imds-network@NETWORK\.socket .*, or set IMDS_FIREWALL=required$/

test('networks in IMDS_LISTEN are refused unless the firewall is required, or all are on loopback', () => {
  for (const places of [
    'red=10.0.0.1:80,blue=10.0.0.2:80',
    '169.254.169.254:80,red=10.0.0.2:80',
    'red=127.0.0.1:80,blue=10.0.0.2:80',
    'red=0.0.0.0:80,blue=127.0.0.1:81',
  ]) {
    expect(listeners(places).faults).toEqual([expect.stringMatching(/^names .*/)])
    expect(listeners(places).faults).toEqual([expect.stringMatching(NOT_SEPARATE)])
    expect(listeners(places, [], true)).toMatchObject({ faults: [], needsFirewall: true })
  }
  for (const places of [
    'red=127.0.0.1:80,blue=127.0.0.2:80,green=[::1]:80',
    '10.0.0.1:80,red=127.0.0.1:80',
    '10.0.0.1:80,[fd00::1]:80',
  ]) {
    for (const isFirewallRequired of [false, true])
      expect(listeners(places, [], isFirewallRequired)).toMatchObject({ faults: [], needsFirewall: false })
  }
})

test('a single network without its socket is refused too: guests of every link would be taken for its own', () => {
  expect(listeners('red=10.0.0.1:80').faults).toEqual([expect.stringMatching(NOT_SEPARATE)])
  expect(listeners('red=10.0.0.1:80,red=10.0.0.2:80', [], true)).toMatchObject({ faults: [], needsFirewall: false })
})

const LISTEN = 'red=169.254.169.254:80,blue=169.254.169.254:80'
const red = { fd: 3, name: 'red' }
const blue = { fd: 4, name: 'blue' }

test('sockets of networks need no firewall, and must be at the places of IMDS_LISTEN', () => {
  const expected = ['red', 'blue'].map((network) => ({ network, host: '169.254.169.254', port: 80 }))
  for (const isFirewallRequired of [false, true])
    expect(listeners(LISTEN, [red, blue], isFirewallRequired)).toEqual({
      networks: ['red', 'blue'],
      expected,
      faults: [],
      needsFirewall: false,
    })
  expect(listeners(LISTEN, [blue])).toMatchObject({ networks: ['blue'], expected, faults: [] })
  expect(listeners('127.0.0.1:0', [blue]).expected).toEqual([])
})

test('a socket of no network beside that of a network is refused without the firewall', () => {
  for (const name of ['', 'unknown', 'imds.socket', 'default']) {
    const sockets = [red, { fd: 4, name }]
    expect(listeners(LISTEN, sockets).faults).toEqual([expect.stringMatching(/^is replaced by sockets of systemd, /)])
    expect(listeners(LISTEN, sockets).faults).toEqual([expect.stringMatching(NOT_SEPARATE)])
    expect(listeners(LISTEN, sockets, true)).toMatchObject({
      networks: ['red', 'default'],
      faults: [],
      needsFirewall: true,
    })
  }
})

test('one address and port of two networks is a fault unless there are sockets, each on a link', () => {
  expect(listeners(LISTEN, [], true).faults).toEqual(['names one address and port twice'])
  expect(listeners(LISTEN, [red, blue]).faults).toEqual([])
})
