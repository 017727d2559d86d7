/** Units and drop-ins in temporary directories. test/imdsd/environment.test.ts compares with systemd. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { beforeEach, expect, test } from 'vitest'
import { readSocketUnit, readUnit } from '../../../src/runtime/unit-file.ts'
import { temporaryDirectory } from '../../support/fixtures/temporary-directory.ts'

let directory: string
beforeEach(() => {
  directory = temporaryDirectory()
})

function file(path: string, text: string): string {
  mkdirSync(dirname(join(directory, path)), { recursive: true })
  writeFileSync(join(directory, path), text)
  return join(directory, path)
}
const read = () => readUnit('a.service', [join(directory, 'etc'), join(directory, 'usr')])

test('a unit that is not installed is undefined', () => expect(read()).toBeUndefined())

test('the unit of this repository and a drop-in for a password give the state directory and the credential', () => {
  const unit = file(
    'usr/a.service',
    '[Service]\nUser=imds\nEnvironment=NODE_ENV=production IMDS_STATE_DIR=%S/imds\nEnvironmentFile=-/etc/imds/imds.env\nStateDirectory=imds\n[Install]\nUser=x\n',
  )
  const dropIn = file(
    'etc/a.service.d/password.conf',
    '# a comment\n[Service]\nLoadCredential=password:/etc/imds/password\nEnvironment=IMDS_PASSWORD_FILE=%d/password\n',
  )
  expect(read()).toEqual({
    files: [unit, dropIn],
    user: 'imds',
    stateDirectory: '/var/lib/imds',
    environmentFiles: ['/etc/imds/imds.env'],
    environment: {
      NODE_ENV: 'production',
      IMDS_STATE_DIR: '/var/lib/imds',
      IMDS_PASSWORD_FILE: '/run/credentials/a.service/password',
    },
    credentials: new Map([['/run/credentials/a.service/password', '/etc/imds/password']]),
  })
})

test('drop-ins apply by their names, one in /etc hides that in /usr, and an empty value resets', () => {
  file('etc/a.service', '[Service]\nEnvironment=A=1 B=2\nEnvironmentFile=/one\n')
  file('usr/a.service', '[Service]\nUser=hidden\n')
  file('usr/a.service.d/10.conf', '[Service]\nEnvironment=A=hidden\n')
  file('etc/a.service.d/10.conf', '[Service]\nEnvironment="A=a b" \'C=%%d\' \\\n  "D=\\"x"\n')
  file('usr/a.service.d/20.conf', '[Service]\nEnvironmentFile=\nEnvironmentFile=-/two\nUser=second\n')
  file('etc/a.service.d/30.text', '[Service]\nUser=third\n')
  expect(read()).toMatchObject({
    user: 'second',
    environment: { A: 'a b', B: '2', C: '%d', D: '"x' },
    environmentFiles: ['/two'],
  })
})

test('the places of a socket have the instance of its template, its network, and what drop-ins change', () => {
  const socket = (name: string) => readSocketUnit(name, [join(directory, 'etc'), join(directory, 'usr')])
  expect(socket('a@x.socket')).toEqual([])
  file('usr/a@.socket', '[Socket]\nListenStream=[%i]:80\nListenStream=/run/x\nFileDescriptorName=default\n')
  file('etc/a@.socket.d/10.conf', '[Socket]\nListenStream=10.0.0.1:81\n')
  file('etc/a@fd00::2.socket.d/10.conf', '[Socket]\nListenStream=\nListenStream=10.0.0.2:80\nFileDescriptorName=red\n')
  expect(socket('a@fd00::1.socket')).toEqual([
    { network: 'default', host: 'fd00::1', port: 80 },
    { network: 'default', host: '10.0.0.1', port: 81 },
  ])
  expect(socket('a@fd00::2.socket')).toEqual([{ network: 'red', host: '10.0.0.2', port: 80 }])
})
