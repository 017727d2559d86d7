import { execFileSync } from 'node:child_process'
import { chmodSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { parseConfig } from '../../../src/imdsd/config.ts'
import { enabledNetworks, inheritedSockets, LINKS, UNIT_DIRECTORIES } from '../../../src/runtime/systemd.ts'
import { temporaryDirectory } from '../../support/fixtures/temporary-directory.ts'

const FILES = { IMDS_STORE: 'file:/srv/imds' }
const listen = (names: string, enabled: readonly string[] = []) => {
  const passed = inheritedSockets(
    { LISTEN_PID: '7', LISTEN_FDS: String(names.split(':').length), LISTEN_FDNAMES: names },
    7,
  )
  return parseConfig(FILES, { passed, enabled })
}

test('sockets of systemd replace IMDS_LISTEN, each for the network of its name', () => {
  expect(listen('red:blue', ['blue', 'red'])).toMatchObject({
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

const SYSTEMD = new URL('../../../src/runtime/systemd.ts', import.meta.url).href
/** Prints the enabled networks as a user without root's rights. */
const WITHOUT_ROOT = `
  const [, url, directory] = process.argv
  const { enabledNetworks } = await import(url)
  if (process.getuid() === 0) process.setuid(65534)
  console.log(JSON.stringify(enabledNetworks([directory])))`

/** A directory in place of /etc/systemd/system and its kin, which the test removes. */
function aDirectory(): string {
  const directory = temporaryDirectory()
  return directory
}

test('the networks whose socket unit is enabled are read from the links that systemctl makes', () => {
  const directory = aDirectory()
  const places = ['etc', 'run', 'usr'].map((name) => join(directory, name))
  expect(enabledNetworks(places)).toEqual({ enabled: [], faults: [] })
  for (const name of [
    'etc/imds.service.wants',
    'run/imds.service.wants',
    'run/imds.service.requires',
    'usr/multi-user.target.wants',
    'etc/imds.service.d',
  ])
    mkdirSync(join(directory, name), { recursive: true })
  for (const name of [
    'etc/imds.service.wants/imds-network@red.socket',
    'run/imds.service.wants/imds-network@red.socket',
    'run/imds.service.requires/imds-network@a-b.socket',
    'etc/imds.service.wants/imds.socket',
    'usr/multi-user.target.wants/imds-network@blue.socket',
    'etc/imds.service.d/imds-network@green.socket',
    'etc/imds-network@yellow.socket',
  ])
    symlinkSync('/nowhere', join(directory, name))
  expect(enabledNetworks(places)).toEqual({ enabled: ['a-b', 'blue', 'red'], faults: [] })
})

test('imds.socket does not start for the same links that replace IMDS_LISTEN', () => {
  const unit = readFileSync(new URL('../../../systemd/imds.socket', import.meta.url), 'utf8')
  const conditions = [...unit.matchAll(/^ConditionPathExistsGlob=!(.*)$/gm)].map(([, glob]) => glob)
  expect(conditions).toEqual(
    UNIT_DIRECTORIES.flatMap((directory) => LINKS.map((kind) => `${directory}/*${kind}/imds-network@*.socket`)),
  )
})

test('a directory of enabled units that may not be read is a fault of the configuration, with its remedy', () => {
  const directory = aDirectory()
  chmodSync(directory, 0o755)
  const wants = join(directory, 'imds.service.wants')
  mkdirSync(wants, 0o000)
  const networks = JSON.parse(
    execFileSync(process.execPath, ['--input-type=module', '--eval', WITHOUT_ROOT, SYSTEMD, directory], {
      encoding: 'utf8',
    }),
  ) as ReturnType<typeof enabledNetworks>
  chmodSync(wants, 0o700)
  expect(parseConfig(FILES, { passed: [], ...networks })).toMatchObject({
    ok: false,
    faults: [
      {
        variable: 'IMDS_LISTEN',
        message: `may be replaced by a unit that is enabled in ${wants}, which cannot be read: EACCES; run chmod 755 ${wants}`,
      },
    ],
  })
})

test('something else in place of a directory of enabled units is a fault of the configuration', () => {
  const directory = aDirectory()
  writeFileSync(join(directory, 'imds.service.wants'), '')
  expect(enabledNetworks([directory])).toMatchObject({ enabled: [], faults: [expect.stringContaining('ENOTDIR')] })
})
