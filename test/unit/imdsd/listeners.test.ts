import { expect, test } from 'vitest'
import { parseListeners, warnOfOverruled } from '../../../src/imdsd/listeners.ts'
import type { SystemdSockets } from '../../../src/runtime/systemd.ts'

/** The listeners, as networks, and the faults. */
function listeners(places: string, systemd: Partial<SystemdSockets> = {}, isFirewallRequired = false) {
  const faults: string[] = []
  const { listen, unserved, needsFirewall } = parseListeners(
    places.split(','),
    true,
    { passed: [], enabled: [], ...systemd },
    isFirewallRequired,
    (message) => faults.push(message),
  )
  return { networks: listen.map(({ network }) => network), unserved, faults, needsFirewall }
}

const SEVERAL =
  /several networks \(.*red.*\), and a guest of one could read the records of another: enable imds-network@NETWORK\.socket .*, or set IMDS_FIREWALL=required$/

test('several networks in IMDS_LISTEN are refused unless the firewall is required, or all are on loopback', () => {
  for (const places of [
    'red=10.0.0.1:80,blue=10.0.0.2:80',
    '169.254.169.254:80,red=10.0.0.2:80',
    'red=127.0.0.1:80,blue=10.0.0.2:80',
    'red=0.0.0.0:80,blue=127.0.0.1:81',
  ]) {
    expect(listeners(places).faults).toEqual([expect.stringMatching(SEVERAL)])
    expect(listeners(places, {}, true)).toMatchObject({ faults: [], needsFirewall: true })
  }
  for (const places of [
    'red=127.0.0.1:80,blue=127.0.0.2:80,green=[::1]:80',
    'red=10.0.0.1:80,red=10.0.0.2:80',
    '10.0.0.1:80,[fd00::1]:80',
  ]) {
    for (const isFirewallRequired of [false, true])
      expect(listeners(places, {}, isFirewallRequired)).toMatchObject({ faults: [], needsFirewall: false })
  }
})

const LISTEN = '169.254.169.254:80'
const passed = ['red', 'blue'].map((name, i) => ({ fd: 3 + i, name }))

test('sockets of several networks are refused if no enabled unit shows that they are bound to links', () => {
  expect(listeners(LISTEN, { passed }).faults).toEqual([expect.stringMatching(SEVERAL)])
  expect(listeners(LISTEN, { passed }, true)).toEqual({
    networks: ['red', 'blue'],
    unserved: [],
    faults: [],
    needsFirewall: true,
  })
  expect(listeners(LISTEN, { passed, enabled: ['blue', 'red'] }, true)).toEqual({
    networks: ['red', 'blue'],
    unserved: [],
    faults: [],
    needsFirewall: false,
  })
  expect(listeners(LISTEN, { passed: passed.slice(1) }, true)).toEqual({
    networks: ['blue'],
    unserved: [],
    faults: [],
    needsFirewall: false,
  })
})

test('while a network has an enabled socket, IMDS_LISTEN is not used, even if no socket was passed', () => {
  expect(listeners(LISTEN, { enabled: ['red'] })).toEqual({
    networks: [],
    faults: [],
    needsFirewall: false,
    unserved: [
      {
        network: 'red',
        problem:
          'network red is not served, since imds-network@red.socket is enabled and has no socket: see systemctl status imds-network@red.socket, then restart imds',
      },
    ],
  })
  expect(listeners('red=10.0.0.1:80,blue=10.0.0.2:80', { enabled: ['red'] }).faults).toEqual([])
})

test('one address and port of two networks is a fault only if IMDS_LISTEN is used', () => {
  // the addresses of the sockets of both, as the firewall agent needs them
  const places = 'red=169.254.169.254:80,blue=169.254.169.254:80'
  expect(listeners(places, {}, true).faults).toEqual(['names one address and port twice'])
  expect(listeners(places, { passed, enabled: ['blue', 'red'] }).faults).toEqual([])
})

test('beside an enabled socket of a network, the socket of another unit is not used', () => {
  const sockets = [
    { fd: 3, name: 'imds.socket' },
    { fd: 4, name: 'red' },
  ]
  expect(listeners(LISTEN, { passed: sockets, enabled: ['red'] }, true)).toMatchObject({
    networks: ['red'],
    faults: [],
    unserved: [
      {
        network: 'default',
        problem: expect.stringContaining('its socket is not that of an enabled imds-network@default.socket') as string,
      },
    ],
  })
})

test('IMDS_LISTEN that names other places than the sockets causes a warning', () => {
  const guests = [{ network: 'red', host: '169.254.169.254', port: 80 }]
  const warnings = (...overruledListen: typeof guests) => {
    const lines: unknown[] = []
    warnOfOverruled({ overruledListen }, guests, {
      warn: (details: unknown) => lines.push(details),
    })
    return lines
  }
  for (const network of ['red', 'default']) expect(warnings({ ...guests[0]!, network })).toEqual([])
  for (const change of [{ network: 'blue' }, { host: '10.0.0.1' }, { port: 81 }]) {
    const other = { ...guests[0]!, ...change }
    expect(warnings(guests[0]!, other)).toEqual([
      {
        code: 'listen-ignored',
        ignored: ['red=169.254.169.254:80', `${other.network}=${other.host}:${other.port}`],
        sockets: ['red=169.254.169.254:80'],
      },
    ])
  }
  warnOfOverruled({ overruledListen: undefined }, guests, {
    warn: () => {
      throw new Error('no warning is due')
    },
  })
})
