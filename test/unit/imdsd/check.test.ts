/**
 * The check of a configuration, with its files in a temporary directory. test/imdsd/check.test.ts runs it as a user
 * without root's rights.
 */
import { execFileSync } from 'node:child_process'
import { createPrivateKey } from 'node:crypto'
import { mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, expect, test } from 'vitest'
import { checkConfiguration } from '../../../src/imdsd/check.ts'
import { keyLines } from '../../support/fixtures/record-keys.ts'
import { temporaryDirectory } from '../../support/fixtures/temporary-directory.ts'

/** A self-signed certificate for the key that is made from 32 bytes of value 1, valid for a year from 2026-11-22 on. */
const CERTIFICATE = [
  '-----BEGIN CERTIFICATE-----',
  'MIHYMIGLAhRyg5i9RKoS+HU/Mezm0ZozMsWwPDAFBgMrZXAwDzENMAsGA1UEAwwE',
  'dGVzdDAeFw0yNjExMjIxMDU3MDFaFw0yNzExMjIxMDU3MDFaMA8xDTALBgNVBAMM',
  'BHRlc3QwKjAFBgMrZXADIQCKiOPddAnxlf1S2y08ul1yymcJvx2UEhvzdIgBtA9v',
  'XDAFBgMrZXADQQDOSfYt+YojMeqBGE0uA7HtpDv5tjb51NHvq97j0Z7qKVkr/wF6',
  'DuOPC6g22Bh4/JPcZSoMmHdrwHYYPoQlPlMG',
  '-----END CERTIFICATE-----',
  '',
].join('\n')
const WITHIN_MS = Date.parse('2027-01-01')

/** The private key that is made from 32 bytes of one value, in PEM. */
function keyOf(value: number): string {
  const key = createPrivateKey({
    key: Buffer.concat([Buffer.from('302e020100300506032b657004220420', 'hex'), Buffer.alloc(32, value)]),
    format: 'der',
    type: 'pkcs8',
  })
  return key.export({ type: 'pkcs8', format: 'pem' })
}

let directory: string
beforeEach(() => {
  directory = temporaryDirectory()
})

/** Writes a file and gives its path. */
function file(name: string, text: string): string {
  writeFileSync(join(directory, name), text)
  return join(directory, name)
}

/** Makes a FIFO and gives its path. */
function fifo(name: string): string {
  execFileSync('mkfifo', [join(directory, name)])
  return join(directory, name)
}

const redis = () => ({
  IMDS_STORE: 'rediss://r',
  IMDS_REGION: 'gb1',
  IMDS_HYPERVISOR: 'hv1',
  IMDS_STATE_DIR: directory,
})
/** The check for the user of this process. */
const check = (env: Record<string, string>, nowMs = WITHIN_MS) =>
  checkConfiguration(env, nowMs, { user: undefined, credentials: new Set(), stateDirectory: undefined, sockets: [] })
const faultsOf = (env: Record<string, string>, nowMs = WITHIN_MS) =>
  check({ ...redis(), ...env }, nowMs).faults.map(({ variable, message }) => `${variable} ${message}`)

test('a configuration whose files are all good has no faults, and the check writes nothing', () => {
  const files = {
    IMDS_REDIS_PASSWORD_FILE: file('password', 'secret\n'),
    IMDS_REDIS_CA_FILE: file('ca', `comment\n${CERTIFICATE}${CERTIFICATE}`),
    IMDS_REDIS_CERT_FILE: file('cert', CERTIFICATE),
    IMDS_REDIS_KEY_FILE: file('key', keyOf(1)),
    IMDS_RECORD_KEYS_FILE: file('record-keys', keyLines('k1')),
  }
  const before = readdirSync(directory)
  expect(faultsOf({ ...files, IMDS_STATE_DIR: join(directory, 'a', 'b') })).toEqual([])
  expect(readdirSync(directory)).toEqual(before)
})

test('every fault of variables and files is reported at once', () => {
  const faults = faultsOf({
    IMDS_LOG_LEVEL: 'loud',
    IMDS_REDIS_PASSWORD_FILE: file('password', ''),
    IMDS_REDIS_CA_FILE: '/none',
    IMDS_STATE_DIR: file('state', ''),
  })
  expect(faults.map((fault) => fault.split(' ', 1)[0])).toEqual([
    'IMDS_LOG_LEVEL',
    'IMDS_REDIS_PASSWORD_FILE',
    'IMDS_REDIS_CA_FILE',
    'IMDS_STATE_DIR',
  ])
})

test.each<[string, () => string, RegExp]>([
  ['IMDS_REDIS_CA_FILE', () => join(directory, 'none'), /^IMDS_REDIS_CA_FILE \/.*\/none cannot be read: ENOENT$/],
  ['IMDS_REDIS_PASSWORD_FILE', () => directory, / \/.* cannot be read: it is a directory, not a regular file$/],
  ['IMDS_TOKEN_KEYS_FILE', () => fifo('keys'), /keys cannot be read: it is a FIFO, not a regular file$/],
  ['IMDS_REDIS_PASSWORD_FILE', () => file('x', '\r\nsecret\n'), /x has no password in its first line$/],
  ['IMDS_REDIS_CA_FILE', () => file('x', keyOf(1)), /x has no PEM certificate$/],
  [
    'IMDS_REDIS_CA_FILE',
    () => file('x', CERTIFICATE + CERTIFICATE.replace('MIHY', 'AAAA')),
    /x has a certificate that cannot be parsed, number 2$/,
  ],
  ['IMDS_REDIS_KEY_FILE', () => file('x', CERTIFICATE), /x has no PEM private key, or one that needs a passphrase$/],
])('a file of %s is a fault: %s, %s', (variable, path, fault) => {
  const cert = variable === 'IMDS_REDIS_KEY_FILE' ? { IMDS_REDIS_CERT_FILE: file('cert', CERTIFICATE) } : {}
  expect(faultsOf({ ...cert, [variable]: path() })).toEqual([expect.stringMatching(fault)])
})

test('a certificate that has expired, or is not valid yet, is a fault', () => {
  const env = { IMDS_REDIS_CA_FILE: file('ca', CERTIFICATE) }
  expect(faultsOf(env, Date.parse('2026-11-21'))).toEqual([
    expect.stringContaining('ca is not valid before Nov 22') as string,
  ])
  expect(faultsOf(env, Date.parse('2027-11-23'))).toEqual([expect.stringContaining('ca expired on Nov 22') as string])
})

test('a private key that is not that of the certificate is a fault', () => {
  const env = { IMDS_REDIS_CERT_FILE: file('cert', CERTIFICATE), IMDS_REDIS_KEY_FILE: file('key', keyOf(2)) }
  expect(faultsOf(env)).toEqual(['IMDS_REDIS_KEY_FILE is not the key of the certificate in IMDS_REDIS_CERT_FILE'])
})

test('invariant 9: no fault has the contents of a file', () => {
  const files = Object.fromEntries(
    [
      'IMDS_REDIS_CA_FILE',
      'IMDS_REDIS_CERT_FILE',
      'IMDS_REDIS_KEY_FILE',
      'IMDS_RECORD_KEYS_FILE',
      'IMDS_TOKEN_KEYS_FILE',
    ].map((name) => [name, file(name, 'S3CRET')]),
  )
  const faults = faultsOf(files)
  expect(faults).toHaveLength(5)
  expect(faults.join()).not.toContain('S3CRET')
})

test('a directory of files that does not exist yet is a note, and a path that is a file is a fault', () => {
  const storeIn = (store: string) => check({ IMDS_STORE: `file:${store}`, IMDS_STATE_DIR: directory })
  expect(storeIn(directory).faults).toEqual([])
  const later = storeIn(join(directory, 'later'))
  expect([later.faults, later.notes.filter((note) => note.includes('the first publish creates it')).length]).toEqual([
    [],
    1,
  ])
  expect(storeIn(file('store', '')).faults).toEqual([
    { variable: 'IMDS_STORE', message: `${join(directory, 'store')} is not a directory` },
  ])
})

test('a missing state directory is no fault if its nearest existing parent is a directory', () => {
  mkdirSync(join(directory, 'parent'))
  expect(faultsOf({ IMDS_STATE_DIR: join(directory, 'parent', 'a', 'b') })).toEqual([])
  expect(faultsOf({ IMDS_STATE_DIR: join(file('plain', ''), 'a') })).toEqual([
    `IMDS_STATE_DIR ${join(directory, 'plain')} is not a directory`,
  ])
})

test('an unknown variable is a note', () => {
  expect(check({ ...redis(), IMDS_LISTN: 'x' }).notes).toContain('unknown variables, which are ignored: IMDS_LISTN')
})
