import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { parseConfig } from '../../../src/config.ts'
import { enabledNetworks, inheritedSockets } from '../../../src/runtime/systemd.ts'

const FILES = { IMDS_STORE: 'file:/srv/imds' }
const listen = (names: string, enabled: readonly string[] = []) => {
  const passed = inheritedSockets({ LISTEN_PID: '7', LISTEN_FDS: String(names.split(':').length), LISTEN_FDNAMES: names }, 7)
  return parseConfig(FILES, { passed, enabled })
}

test('sockets of systemd replace IMDS_LISTEN, each for the network of its name', () => {
  expect(listen('red:blue', ['blue', 'red'])).toMatchObject({ value: { listen: [{ fd: 3, network: 'red' }, { fd: 4, network: 'blue' }], operator: { host: '127.0.0.1', port: 9169 } } })
})

test('a socket without a name is for the default network', () => {
  for (const name of ['imds.socket', 'unknown', '']) expect(listen(name)).toMatchObject({ value: { listen: [{ fd: 3, network: 'default' }] } })
})

test('sockets in the environment that belong to another process are ignored', () => {
  expect(inheritedSockets({ LISTEN_PID: '8', LISTEN_FDS: '1', LISTEN_FDNAMES: 'red' }, 7)).toEqual([])
  expect(inheritedSockets({}, 7)).toEqual([])
})

test('the networks whose socket unit is enabled are read from the links that systemctl makes', () => {
  const directory = mkdtempSync(join(tmpdir(), 'imds-wants-'))
  onTestFinished(() => { rmSync(directory, { recursive: true }) })
  const wants = ['etc', 'run'].map((name) => join(directory, name))
  expect(enabledNetworks(wants)).toEqual([])
  for (const path of wants) mkdirSync(path)
  for (const name of ['etc/imds-network@red.socket', 'run/imds-network@red.socket', 'run/imds-network@a-b.socket', 'etc/imds.socket']) symlinkSync('/nowhere', join(directory, name))
  expect(enabledNetworks(wants)).toEqual(['a-b', 'red'])
})
