import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, expect, test } from 'vitest'
import { parseEnvironmentFile, readServiceEnvironment } from '../../../src/runtime/service-environment.ts'
import { parseShown } from '../../../src/runtime/systemd-units.ts'
import { ENVIRONMENT_FILES } from '../../support/fixtures/environment-files.ts'
import { temporaryDirectory } from '../../support/fixtures/temporary-directory.ts'

let directory: string
beforeEach(() => {
  directory = temporaryDirectory()
})

function file(name: string, text: string): string {
  writeFileSync(join(directory, name), text)
  return join(directory, name)
}

/** What `systemctl show` prints. */
const shown = (environmentFiles: string[]) => () =>
  parseShown(`LoadState=loaded
FragmentPath=${file('unit', '[Service]\nLoadCredential=password:/etc/imds/first\n')}
DropInPaths=${file('a.conf', '[Service]\nLoadCredential=\nLoadCredential=password:/etc/imds/password\n')}
NeedDaemonReload=no
User=imds
StateDirectory=imds
Environment=IMDS_REGION=of-the-unit "IMDS_TEXT=a \\"b\\" \\$c" IMDS_PASSWORD_FILE=/run/credentials/a.service/password IMDS_OTHER_FILE=/run/credentials/a.service/encrypted NODE_ENV=production
${environmentFiles.map((path) => `EnvironmentFiles=${path} (ignore_errors=yes)`).join('\n')}
`)
const parsed = (environmentFiles: string[], env: Record<string, string>, path: string | undefined, hasStore: boolean) =>
  readServiceEnvironment(
    { name: 'a.service', file: join(directory, 'default') },
    path,
    env,
    hasStore,
    environmentFiles.length > 0 ? shown(environmentFiles) : () => undefined,
  )
const read = (environmentFiles: string[], env: Record<string, string> = {}, path?: string, hasStore = false) => {
  const result = parsed(environmentFiles, env, path, hasStore)
  if (!result.ok) throw new Error(result.faults.join())
  return result.value
}

test('the environment of the command comes before the file, and the file before the unit', () => {
  const path = file('env', 'IMDS_REGION=of-the-file\nIMDS_HYPERVISOR=hv1\nPATH=/x\n')
  expect(read([path]).variables).toMatchObject({ IMDS_REGION: 'of-the-file', IMDS_HYPERVISOR: 'hv1' })
  const { variables, notes } = read([path], { IMDS_REGION: 'own', PATH: '/bin' })
  expect(variables).toMatchObject({ IMDS_REGION: 'own', PATH: '/bin' })
  expect(notes).toEqual(['from the environment of this command, not from the service: IMDS_REGION'])
  expect('NODE_ENV' in variables).toBe(false)
  expect(read([path], { IMDS_REGION: 'of-the-file', IMDS_STORE: 'file:/x' }).replaced).toEqual(['IMDS_STORE'])
  expect(read([], { IMDS_STORE: 'file:/x' }).replaced).toEqual([]) // there is no service
})

test('a variable of a credential names the file that systemd loads, if there is one', () => {
  const { variables, credentials, files } = read([file('env', 'A=1')])
  expect(variables).toMatchObject({
    IMDS_PASSWORD_FILE: '/etc/imds/password',
    IMDS_OTHER_FILE: '/run/credentials/a.service/encrypted',
  })
  expect([[...credentials], files]).toEqual([
    ['/etc/imds/password'],
    ['unit', 'a.conf', 'env'].map((name) => join(directory, name)),
  ])
})

test('a command with a store of its own gets no file of Redis or of record keys from the service', () => {
  const { variables, credentials } = read(
    [file('env', 'IMDS_REDIS_CA_FILE=/ca\nIMDS_RECORD_KEYS_FILE=/keys\nIMDS_API_DATABASE_PASSWORD_FILE=/database\n')],
    {},
    undefined,
    true,
  )
  expect([variables, [...credentials]]).toEqual([
    {
      IMDS_REGION: 'of-the-unit',
      IMDS_TEXT: 'a "b" $c',
      IMDS_API_DATABASE_PASSWORD_FILE: '/database',
      IMDS_PASSWORD_FILE: '/etc/imds/password',
      IMDS_OTHER_FILE: '/run/credentials/a.service/encrypted',
    },
    ['/etc/imds/password'],
  ])
})

test('without a unit the default file is read if it exists; a file that is named must exist', () => {
  expect(read([]).variables).toEqual({})
  file('default', 'IMDS_REGION="gb1"\nexport IMDS_X=1\n')
  expect(read([])).toMatchObject({
    variables: { IMDS_REGION: 'gb1' },
    notes: [expect.stringContaining('default: "export IMDS_X" is not the name of a variable') as string],
  })
  expect(parsed([], {}, '/none', false)).toEqual({
    ok: false,
    faults: ['--environment-file /none cannot be read: ENOENT'],
  })
  expect(read([], {}, file('other', 'IMDS_REGION=gb2')).variables).toEqual({ IMDS_REGION: 'gb2' })
})

test('an empty variable counts as not set, in the command as in the service', () => {
  const path = file('empty', 'IMDS_REGION=of-the-file\nIMDS_HYPERVISOR=\nIMDS_X_FILE=/x\n')
  const { variables } = read([path], { IMDS_REGION: ' ', IMDS_STORE: '' })
  expect(variables).toMatchObject({ IMDS_REGION: 'of-the-file', IMDS_X_FILE: '/x' }) // no store: its files count
  expect(Object.keys(variables)).not.toContain('IMDS_HYPERVISOR')
})

test('systemd says who runs the service, its variables, and whether it has read its files', () => {
  const { unit, notes, variables } = read([file('env', '')])
  expect(unit).toMatchObject({ user: 'imds', stateDirectory: '/var/lib/imds', needsReload: false })
  expect(variables).toMatchObject({ IMDS_TEXT: 'a "b" $c' })
  expect(notes).toEqual([])
  const service = { name: 'a.service', file: '/none' }
  const changed = readServiceEnvironment(service, undefined, {}, false, () =>
    parseShown('LoadState=loaded\nNeedDaemonReload=yes\n'),
  )
  expect(changed).toMatchObject({
    value: { notes: ['a.service has changed, and systemd has not read it: systemctl daemon-reload'] },
  })
  const missing = readServiceEnvironment(service, undefined, {}, false, () => parseShown('LoadState=not-found\n'))
  expect(missing).toMatchObject({ value: { unit: undefined, files: [] } })
})

test.each(Object.entries(ENVIRONMENT_FILES))('%s', (_what, { text, variables }) => {
  expect(parseEnvironmentFile(text).variables).toEqual(variables)
})

test('a name that no variable can have is reported', () => {
  expect(parseEnvironmentFile('export IMDS_REGION=gb1\nA-B=1\n').ignored).toEqual(['export IMDS_REGION', 'A-B'])
})

test('a large file is parsed in linear time: 1 MiB of white space, quotes or backslashes ends', () => {
  for (const text of [' ', '\n', '"', '\\', 'A=" ', "' '", '# \\'])
    parseEnvironmentFile(`A=${text.repeat(2 ** 20 / text.length)}`)
})
