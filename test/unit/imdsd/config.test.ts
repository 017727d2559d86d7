import { readFileSync, rmSync } from 'node:fs'
import { afterAll, describe, expect, test } from 'vitest'
import { parseConfig } from '../../../src/imdsd/config.ts'
import { KEY_KINDS, makeIdentity } from '../../support/fixtures/identity.ts'
import { keyLines } from '../../support/fixtures/record-keys.ts'

const REDIS = { IMDS_STORE: 'redis://r:6379', IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' }

function faultsOf(env: Record<string, string>): string[] {
  const parsed = parseConfig(env)
  return parsed.ok ? [] : parsed.faults.map(({ variable, message }) => `${variable} ${message}`)
}

test('every default of the configuration is the documented one, and nothing else is in it', () => {
  const parsed = parseConfig(REDIS)
  expect(parsed.ok && parsed.value).toStrictEqual({
    listen: [{ network: 'default', host: '169.254.169.254', port: 80 }],
    expected: [],
    needsFirewall: false,
    operator: { host: '127.0.0.1', port: 9169, allow: [] },
    operatorSocket: '/run/imds/operator.sock',
    store: {
      kind: 'redis',
      url: 'redis://r:6379',
      region: 'gb1',
      hypervisor: 'hv1',
      recordKeys: undefined,
      passwordFile: undefined,
      sentinelPasswordFile: undefined,
      recordKeysFile: undefined,
      caFile: undefined,
      certFile: undefined,
      keyFile: undefined,
    },
    stateDirectory: '/var/lib/imds',
    logLevel: 'info',
    userDataMaxBytes: 16384,
    share: { burst: 600, perSecond: 100, connections: 64 },
    forwarded: 'refuse',
    tokenKeys: undefined,
    resyncMs: 60_000,
    journalMaxAgeMs: 86_400_000,
    firewall: { required: false, link: 'tap-{interfaceId}' },
    provider: {},
    identity: undefined,
  })
})

test('each variable sets its part of the configuration', () => {
  expect(
    parseConfig({
      ...REDIS,
      IMDS_FORWARDED: 'count',
      IMDS_FIREWALL: 'required',
      IMDS_LINK: 'tap-{network}',
      IMDS_SERVICES_DOMAIN: 'example.com',
      IMDS_SERVICES_PARTITION: 'imds',
      IMDS_GUEST_BURST: '600',
      IMDS_GUEST_REQUESTS_PER_SECOND: '1000000000',
      IMDS_GUEST_CONNECTIONS: '65536',
      IMDS_RESYNC_SECONDS: '1',
      IMDS_JOURNAL_MAX_AGE_SECONDS: '31536000',
    }),
  ).toMatchObject({
    ok: true,
    value: {
      forwarded: 'count',
      firewall: { required: true, link: 'tap-{network}' },
      provider: { domain: 'example.com', partition: 'imds' },
      share: { burst: 600, perSecond: 1_000_000_000, connections: 65_536 },
      resyncMs: 1_000,
      journalMaxAgeMs: 31_536_000_000,
    },
  })
})

test('sockets of systemd are used in place of IMDS_LISTEN, whose default they must match too', () => {
  const sockets = [
    { fd: 3, name: 'unknown' },
    { fd: 4, name: 'imds.socket' },
  ]
  const listen = [
    { fd: 3, network: 'default' },
    { fd: 4, network: 'default' },
  ]
  const expected = (host: string) => [{ network: 'default', host, port: 80 }]
  for (const [env, host] of [
    [REDIS, '169.254.169.254'],
    [{ ...REDIS, IMDS_LISTEN: '' }, '169.254.169.254'],
    [{ ...REDIS, IMDS_LISTEN: '10.0.0.1:80' }, '10.0.0.1'],
  ] as const)
    expect(parseConfig(env, sockets)).toMatchObject({ ok: true, value: { listen, expected: expected(host) } })
  expect(parseConfig({ ...REDIS, IMDS_LISTEN: '10.0.0.1:80' })).toMatchObject({ ok: true, value: { expected: [] } })
})

test('a port of 0 is any free one, so two listeners may have it', () => {
  expect(parseConfig({ ...REDIS, IMDS_LISTEN: '127.0.0.1:0,127.0.0.1:0' })).toMatchObject({ ok: true })
})

test('operators on ::1 need no list of networks', () => {
  expect(parseConfig({ ...REDIS, IMDS_OPERATOR_LISTEN: '[::1]:9169' })).toMatchObject({
    ok: true,
    value: { operator: { host: '::1', port: 9169 } },
  })
})

test('a file store needs no hypervisor and accepts every instance', () => {
  for (const url of ['file:/srv/imds', 'file:///srv/imds']) {
    expect(parseConfig({ IMDS_STORE: url })).toMatchObject({
      ok: true,
      value: { store: { kind: 'files', directory: '/srv/imds', hypervisor: undefined } },
    })
  }
})

test('several listeners may have their own networks, IPv6 included', () => {
  expect(
    parseConfig({
      ...REDIS,
      IMDS_FIREWALL: 'required',
      IMDS_LISTEN: '169.254.169.254:80, red=10.0.0.1:80,[FD00:ec2:0::254]:80',
    }),
  ).toMatchObject({
    value: {
      listen: [
        { network: 'default', host: '169.254.169.254', port: 80 },
        { network: 'red', host: '10.0.0.1', port: 80 },
        { network: 'default', host: 'fd00:ec2::254', port: 80 },
      ],
    },
  })
})

test('Redis may have any deployment shape, with files for its credentials', () => {
  const files = {
    IMDS_REDIS_PASSWORD_FILE: '/p',
    IMDS_REDIS_SENTINEL_PASSWORD_FILE: '/s',
    IMDS_REDIS_CA_FILE: '/ca',
    IMDS_REDIS_CERT_FILE: '/c',
    IMDS_REDIS_KEY_FILE: '/k',
  }
  expect(parseConfig({ ...REDIS, ...files, IMDS_STORE: 'rediss-sentinel://imds@s1,s2:1/main' })).toMatchObject({
    ok: true,
    value: {
      store: {
        url: 'rediss-sentinel://imds@s1,s2:1/main',
        passwordFile: '/p',
        sentinelPasswordFile: '/s',
        caFile: '/ca',
        certFile: '/c',
        keyFile: '/k',
      },
    },
  })
})

test('an empty variable counts as unset', () => {
  expect(parseConfig({ ...REDIS, IMDS_LISTEN: '', IMDS_LOG_LEVEL: ' ' })).toMatchObject({
    ok: true,
    value: { logLevel: 'info' },
  })
})

test('all bad variables are reported at once, by name', () => {
  const faults = faultsOf({
    IMDS_LISTEN: 'nowhere',
    IMDS_OPERATOR_LISTEN: '0',
    IMDS_STORE: 'mysql://x',
    IMDS_LOG_LEVEL: 'loud',
    IMDS_USER_DATA_MAX_BYTES: '1k',
    IMDS_RESYNC_SECONDS: '0',
    IMDS_STATE_DIR: 'here',
  })
  expect(faults.map((fault) => fault.split(' ', 1)[0])).toEqual([
    'IMDS_USER_DATA_MAX_BYTES',
    'IMDS_RESYNC_SECONDS',
    'IMDS_OPERATOR_LISTEN',
    'IMDS_STATE_DIR',
    'IMDS_LOG_LEVEL',
    'IMDS_LISTEN',
    'IMDS_STORE',
  ])
})

describe('a configuration is refused', () => {
  test.each<[string, Record<string, string>, RegExp]>([
    ['without a store', {}, /IMDS_STORE is not set/],
    [
      'with Redis and no hypervisor: a guessed name would be a silent empty host',
      { IMDS_STORE: REDIS.IMDS_STORE, IMDS_REGION: 'gb1' },
      /IMDS_HYPERVISOR is not set/,
    ],
    ['with Redis and no region', { IMDS_STORE: REDIS.IMDS_STORE, IMDS_HYPERVISOR: 'hv1' }, /IMDS_REGION is not set/],
    ['with a hypervisor of two words', { ...REDIS, IMDS_HYPERVISOR: 'hv 1' }, /IMDS_HYPERVISOR must be one word/],
    [
      'with a firewall that is neither off nor required',
      { ...REDIS, IMDS_FIREWALL: 'on' },
      /^IMDS_FIREWALL must be off or required$/,
    ],
    [
      'with an unknown rule for forwarded requests',
      { ...REDIS, IMDS_FORWARDED: 'maybe' },
      /^IMDS_FORWARDED must be one of /,
    ],
    ['with a link name that is too long', { ...REDIS, IMDS_LINK: 'x'.repeat(16) }, /^IMDS_LINK must be a link name/],
    [
      'with a partition of two words',
      { ...REDIS, IMDS_SERVICES_PARTITION: 'a b' },
      /^IMDS_SERVICES_PARTITION must be one word/,
    ],
    [
      'with a fraction',
      { ...REDIS, IMDS_RESYNC_SECONDS: '1.5' },
      /^IMDS_RESYNC_SECONDS must be a whole number from 1 to 86400, in decimal digits$/,
    ],
    [
      'with an address without a port',
      { ...REDIS, IMDS_OPERATOR_LISTEN: '127.0.0.1' },
      /^IMDS_OPERATOR_LISTEN must be ADDRESS:PORT/,
    ],
    [
      'with a bad region beside files',
      { IMDS_STORE: 'file:/srv/imds', IMDS_REGION: 'a b' },
      /^IMDS_REGION must be one word/,
    ],
    [
      'with a list of networks that has a host name',
      { ...REDIS, IMDS_OPERATOR_ALLOW: 'example/8' },
      /^IMDS_OPERATOR_ALLOW "example\/8" is not a network/,
    ],
    ['with no listener at all', { ...REDIS, IMDS_LISTEN: ',' }, /IMDS_LISTEN names no address/],
    [
      'with one listener twice',
      { ...REDIS, IMDS_LISTEN: '10.0.0.1:80,x=10.0.0.1:80' },
      /IMDS_LISTEN names one address and port twice/,
    ],
    ['with a host name to listen on', { ...REDIS, IMDS_LISTEN: 'localhost:80' }, /IMDS_LISTEN/],
    [
      'with operators on an open address and no list of networks',
      { ...REDIS, IMDS_OPERATOR_LISTEN: '0.0.0.0:9169' },
      /IMDS_OPERATOR_ALLOW must list the networks/,
    ],
    [
      "with a relative path of the operators' socket",
      { ...REDIS, IMDS_OPERATOR_SOCKET: 'operator.sock' },
      /^IMDS_OPERATOR_SOCKET must be an absolute path of at most 107 bytes/,
    ],
    [
      "with a path of the operators' socket that is too long",
      { ...REDIS, IMDS_OPERATOR_SOCKET: `/${'x'.repeat(107)}` },
      /^IMDS_OPERATOR_SOCKET must be/,
    ],
    [
      'with a list of networks that has an address',
      { ...REDIS, IMDS_OPERATOR_ALLOW: '10.0.0.1' },
      /IMDS_OPERATOR_ALLOW "10.0.0.1" is not a network/,
    ],
    ['with a relative file URL', { IMDS_STORE: 'file:' }, /IMDS_STORE must be/],
    [
      'with a password in the URL',
      { ...REDIS, IMDS_STORE: 'redis://imds:secret@r' },
      /^IMDS_STORE must not have a password in it, .*: name its file in IMDS_REDIS_PASSWORD_FILE \(--password-file\)$/,
    ],
    ['with an authority and no TLS', { ...REDIS, IMDS_REDIS_CA_FILE: '/ca.pem' }, /IMDS_REDIS_CA_FILE is for TLS/],
  ])('%s', (_what, env, fault) => expect(faultsOf(env).join('\n')).toMatch(fault))
})

describe('record keys', () => {
  const withKeys = (text: string, env: Record<string, string> = REDIS) =>
    parseConfig({ ...env, IMDS_RECORD_KEYS_FILE: '/keys' }, undefined, (path) => {
      if (path !== '/keys') throw new Error('another file')
      return text
    })
  test('are read once, from their file', () => {
    expect(withKeys(keyLines('k2', 'k1'))).toMatchObject({
      ok: true,
      value: { store: { recordKeys: [{ name: 'k2' }, { name: 'k1' }] } },
    })
    expect(parseConfig(REDIS)).toMatchObject({ ok: true, value: { store: { recordKeys: undefined } } })
  })
  test('that are invalid are reported with the other faults, without their content', () => {
    const faults = withKeys('k1:S3CRET', { ...REDIS, IMDS_LOG_LEVEL: 'loud' })
    expect(faults).toMatchObject({
      ok: false,
      faults: [
        { variable: 'IMDS_LOG_LEVEL' },
        { variable: 'IMDS_RECORD_KEYS_FILE', message: 'has no NAME:BASE64-OF-32-BYTES in line 1' },
      ],
    })
    expect(JSON.stringify(faults)).not.toContain('S3CRET')
  })
  test('in a file that cannot be read are a fault', () => {
    expect(faultsOf({ ...REDIS, IMDS_RECORD_KEYS_FILE: '/keys' })).toEqual([
      'IMDS_RECORD_KEYS_FILE /keys cannot be read: no function to read files was given',
    ])
  })
  test('are for Redis only', () => {
    expect(withKeys(keyLines('k1'), { IMDS_STORE: 'file:/srv/imds' })).toMatchObject({
      ok: false,
      faults: [{ variable: 'IMDS_RECORD_KEYS_FILE', message: 'is for Redis: records in files are not encrypted' }],
    })
  })
})

test('the operator API may listen on any address with a list of networks', () => {
  expect(
    parseConfig({ ...REDIS, IMDS_OPERATOR_LISTEN: '[::]:9169', IMDS_OPERATOR_ALLOW: '10.1.0.0/16, fd00::/8' }),
  ).toMatchObject({ ok: true, value: { operator: { host: '::', port: 9169, allow: ['10.1.0.0/16', 'fd00::/8'] } } })
})

test('an unknown variable is named, not refused: an older daemon may start with a newer environment', () => {
  expect(parseConfig({ ...REDIS, IMDS_LISTN: 'x' })).toMatchObject({
    ok: true,
    unknown: ['IMDS_LISTN'],
  })
  expect(parseConfig({ ...REDIS, IMDS_API_LISTEN: '127.0.0.1:8170' })).toMatchObject({ ok: true, unknown: [] })
})

describe('the identity of guests', () => {
  const files = makeIdentity()
  const other = makeIdentity(KEY_KINDS.ec)
  afterAll(() => {
    for (const { directory } of [files, other]) rmSync(directory, { recursive: true })
  })
  const readText = (path: string) => readFileSync(path, 'utf8')
  const parse = (env: Record<string, string>) => parseConfig({ ...REDIS, ...env }, undefined, readText)
  const [IMDS_IDENTITY_KEY_FILE, IMDS_IDENTITY_CERT_FILE] = [files.keyFile, files.certificateFile]
  const IMDS_IDENTITY_ISSUER = 'https://id.example.com/gb1'

  test('H3: a key, its certificate and an issuer are read', () => {
    const parsed = parse({ IMDS_IDENTITY_KEY_FILE, IMDS_IDENTITY_CERT_FILE, IMDS_IDENTITY_ISSUER })
    expect(parsed).toMatchObject({ ok: true, value: { identity: { issuer: IMDS_IDENTITY_ISSUER } } })
  })

  test.each<[string, Record<string, string>, string]>([
    ['a key without a certificate', { IMDS_IDENTITY_KEY_FILE }, 'IMDS_IDENTITY_CERT_FILE is not set'],
    ['a certificate without a key', { IMDS_IDENTITY_CERT_FILE }, 'IMDS_IDENTITY_KEY_FILE is not set'],
    ['an issuer without a key', { IMDS_IDENTITY_ISSUER }, 'IMDS_IDENTITY_ISSUER needs a key'],
    [
      'the certificate of another key',
      { IMDS_IDENTITY_KEY_FILE, IMDS_IDENTITY_CERT_FILE: other.certificateFile },
      'IMDS_IDENTITY_CERT_FILE is not the certificate of the key',
    ],
    [
      'a certificate in place of the key',
      { IMDS_IDENTITY_KEY_FILE: files.certificateFile, IMDS_IDENTITY_CERT_FILE },
      'IMDS_IDENTITY_KEY_FILE names a file that is not one private key',
    ],
    [
      'a missing file',
      { IMDS_IDENTITY_KEY_FILE: `${files.keyFile}x`, IMDS_IDENTITY_CERT_FILE },
      'IMDS_IDENTITY_KEY_FILE .* cannot be read',
    ],
    [
      'an issuer that is no https URL',
      { IMDS_IDENTITY_KEY_FILE, IMDS_IDENTITY_CERT_FILE, IMDS_IDENTITY_ISSUER: 'http://id.example.com' },
      'IMDS_IDENTITY_ISSUER must be an https URL',
    ],
  ])('H3: %s is a fault, the only one', (_what, env, fault) => {
    const parsed = parse(env)
    const faults = parsed.ok ? [] : parsed.faults.map(({ variable, message }) => `${variable} ${message}`)
    expect(faults).toEqual([expect.stringMatching(fault)])
  })
})
