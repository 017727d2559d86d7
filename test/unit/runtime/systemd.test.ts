import { expect, test } from 'vitest'
import { parseConfig } from '../../../src/imdsd/config.ts'
import { inheritedSockets } from '../../../src/runtime/systemd.ts'

const FILES = { IMDS_STORE: 'file:/srv/imds' }
const listen = (names: string) => {
  const passed = inheritedSockets(
    { LISTEN_PID: '7', LISTEN_FDS: String(names.split(':').length), LISTEN_FDNAMES: names },
    7,
  )
  return parseConfig(FILES, passed)
}

test('sockets of systemd are used in place of IMDS_LISTEN, each for the network of its name', () => {
  expect(listen('red:blue')).toMatchObject({
    value: {
      listen: [
        { fd: 3, network: 'red' },
        { fd: 4, network: 'blue' },
      ],
      operator: { host: '127.0.0.1', port: 9169 },
    },
  })
})

test('a socket without a name is for the default network', () => {
  for (const name of ['imds.socket', 'unknown', ''])
    expect(listen(name)).toMatchObject({ value: { listen: [{ fd: 3, network: 'default' }] } })
})

test('sockets in the environment that belong to another process are ignored', () => {
  expect(inheritedSockets({ LISTEN_PID: '8', LISTEN_FDS: '1', LISTEN_FDNAMES: 'red' }, 7)).toEqual([])
  expect(inheritedSockets({}, 7)).toEqual([])
})
