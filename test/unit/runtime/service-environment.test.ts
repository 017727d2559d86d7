import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, expect, test } from 'vitest'
import { readServiceEnvironment } from '../../../src/runtime/service-environment.ts'
import type { Unit } from '../../../src/runtime/unit-file.ts'
import { temporaryDirectory } from '../../support/fixtures/temporary-directory.ts'

let directory: string
beforeEach(() => {
  directory = temporaryDirectory()
})

function file(name: string, text: string): string {
  writeFileSync(join(directory, name), text)
  return join(directory, name)
}

const unit = (environmentFiles: string[]): Unit => ({
  files: ['/unit'],
  user: 'imds',
  stateDirectory: undefined,
  environmentFiles,
  environment: {
    IMDS_REGION: 'of-the-unit',
    IMDS_PASSWORD_FILE: '/run/credentials/a/password',
    IMDS_OTHER_FILE: '/run/credentials/a/encrypted',
    NODE_ENV: 'production',
  },
  credentials: new Map([['/run/credentials/a/password', '/etc/imds/password']]),
})
const parsed = (environmentFiles: string[], env: Record<string, string>, path: string | undefined, hasStore: boolean) =>
  readServiceEnvironment(
    { name: 'a.service', file: join(directory, 'default') },
    environmentFiles.length > 0 ? unit(environmentFiles) : undefined,
    path,
    env,
    hasStore,
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
    IMDS_OTHER_FILE: '/run/credentials/a/encrypted',
  })
  expect([[...credentials], files]).toEqual([['/etc/imds/password'], ['/unit', join(directory, 'env')]])
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
      IMDS_API_DATABASE_PASSWORD_FILE: '/database',
      IMDS_PASSWORD_FILE: '/etc/imds/password',
      IMDS_OTHER_FILE: '/run/credentials/a/encrypted',
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
