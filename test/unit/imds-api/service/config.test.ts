import { expect, test } from 'vitest'
import { parseApiConfig } from '../../../../src/imds-api/service/config.ts'

const DATABASE = { IMDS_API_DATABASE: 'postgres://u@h/d' }
const FILES = { IMDS_STORE: 'file:/srv/imds', ...DATABASE }
const REDIS = { IMDS_STORE: 'redis://r:6379', IMDS_REGION: 'gb1' }

function valueOf(env: Record<string, string>) {
  const parsed = parseApiConfig(env)
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.faults))
  return parsed.value
}

function faultsOf(env: Record<string, string>): string[] {
  const parsed = parseApiConfig({ ...FILES, ...env })
  return parsed.ok ? [] : parsed.faults.map(({ variable, message }) => `${variable} ${message}`)
}

test('the minimal configuration has the documented defaults', () => {
  expect(valueOf(FILES)).toEqual({
    listen: [{ host: '127.0.0.1', port: 8170 }],
    operator: { host: '127.0.0.1', port: 9170 },
    baseUrl: 'http://127.0.0.1:8170',
    tls: undefined,
    trustedProxies: [],
    connectionsPerAddress: 256,
    stopDelaySeconds: 0,
    database: { url: 'postgres://u@h/d', passwordFile: undefined, connections: 16 },
    store: expect.objectContaining({ url: 'file:/srv/imds', userDataMaxBytes: 16_384 }) as unknown,
    accessTokenSeconds: 7200,
    refreshTokenSeconds: 2_592_000,
    mail: undefined,
    compute: 'none',
    computeListener: { listen: { host: '127.0.0.1', port: 8171 }, tls: undefined, retrySeconds: 60 },
    logLevel: 'info',
  })
  expect(Object.isFrozen(valueOf(FILES))).toBe(true)
})

test('every variable is read, and an empty one is not set', () => {
  expect(
    valueOf({
      ...REDIS,
      IMDS_API_LISTEN: ' [::]:443,,unix:/run/x.sock',
      IMDS_API_OPERATOR_LISTEN: '10.0.0.1:1',
      IMDS_API_TLS_CERT_FILE: '/c',
      IMDS_API_TLS_KEY_FILE: '/k',
      IMDS_API_BASE_URL: 'https://api.example.com/',
      IMDS_API_DATABASE: ' postgres://u@h/d ',
      IMDS_API_DATABASE_PASSWORD_FILE: '/p',
      IMDS_API_DATABASE_CONNECTIONS: '1',
      IMDS_API_TRUSTED_PROXIES: '10.0.0.1, fd00::/8,unix:',
      IMDS_API_CONNECTIONS_PER_ADDRESS: '4096',
      IMDS_API_ACCESS_TOKEN_SECONDS: '60',
      IMDS_API_REFRESH_TOKEN_SECONDS: '3600',
      IMDS_API_LOG_LEVEL: 'debug',
      IMDS_API_SMTP: '',
    }),
  ).toMatchObject({
    listen: [{ host: '::', port: 443 }, { path: '/run/x.sock' }],
    operator: { host: '10.0.0.1', port: 1 },
    tls: { certificate: '/c', key: '/k' },
    baseUrl: 'https://api.example.com',
    database: { url: 'postgres://u@h/d', passwordFile: '/p', connections: 1 },
    trustedProxies: ['10.0.0.1', 'fd00::/8', 'unix:'],
    connectionsPerAddress: 4_096,
    accessTokenSeconds: 60,
    refreshTokenSeconds: 3600,
    logLevel: 'debug',
    store: { url: 'redis://r:6379', region: 'gb1' },
  })
})

test('the settings of mail are read, and their faults reported', () => {
  const mail = {
    IMDS_API_SMTP: 'smtps://mail.example.com',
    IMDS_API_MAIL_FROM: 'noreply@example.com',
    IMDS_API_INVITATION_URL: 'https://cloud.example.com/',
  }
  expect(valueOf({ ...FILES, ...mail }).mail).toMatchObject({
    host: 'mail.example.com',
    port: 465,
    from: 'noreply@example.com',
    invitationUrl: 'https://cloud.example.com/',
  })
  expect(faultsOf({ ...mail, IMDS_API_MAIL_FROM: '' })).toEqual([
    'IMDS_API_MAIL_FROM is not set: IMDS_API_SMTP needs it',
  ])
})

test('the default base URL has the scheme and the place of the listener', () => {
  expect(valueOf({ ...FILES, IMDS_API_LISTEN: 'unix:/x,[::1]:1,127.0.0.1:2' }).baseUrl).toBe('http://[::1]:1')
  expect(
    valueOf({ ...FILES, IMDS_API_LISTEN: '10.0.0.1:1', IMDS_API_TLS_CERT_FILE: '/c', IMDS_API_TLS_KEY_FILE: '/k' })
      .baseUrl,
  ).toBe('https://10.0.0.1:1')
})

test.each([
  ['IMDS_API_COMPUTE_RETRY_SECONDS', '0x10', 'must be a whole number'],
  ['IMDS_API_LISTEN', '8170', '"8170" is not ADDRESS:PORT or unix:PATH'],
  ['IMDS_API_LISTEN', ',', 'names no address'],
  ['IMDS_API_LISTEN', 'unix:api.sock', '"unix:api.sock" is not'],
  ['IMDS_API_LISTEN', 'localhost:8170', '"localhost:8170" is not ADDRESS:PORT'],
  ['IMDS_API_LISTEN', '127.0.0.1:1,127.0.0.1:0,127.0.0.1:0,127.0.0.1:1', 'names one address twice'],
  ['IMDS_API_LISTEN', 'unix:/x,127.0.0.1:0,unix:/x', 'names one address twice'],
  [
    'IMDS_API_LISTEN',
    '127.0.0.1:1,0.0.0.0:8170',
    '"0.0.0.0:8170" must be a loopback address or a unix socket without TLS',
  ],
  ['IMDS_API_COMPUTE_LISTEN', '0.0.0.0:8171', '0.0.0.0:8171 must be a loopback address'],
  ['IMDS_API_BASE_URL', 'api.example.com', 'must be the URL'],
  ['IMDS_API_BASE_URL', 'https:api.example.com', 'must be the URL'],
  ['IMDS_API_BASE_URL', 'https://a/?b', 'must be the URL'],
  ['IMDS_API_BASE_URL', 'https://a/?', 'must be the URL'],
  [
    'IMDS_API_BASE_URL',
    'https://ada:secret@api.example.com',
    'must not have a user or a password in it, since every response shows it',
  ],
  ['IMDS_API_TRUSTED_PROXIES', '10.0.0.1, proxy', '"proxy" is not an address'],
  ['IMDS_STORE', '', 'is not set'],
  ['IMDS_API_DATABASE', 'mysql://x', 'must be postgres:'],
  ['IMDS_API_DATABASE', 'postgres://u:hunter2@h/d', 'must not have a password in it, '],
  ['IMDS_API_DATABASE', 'postgres://u@h/d?password=hunter2', 'must not have a password in it'],
  ['IMDS_API_DATABASE', 'postgres://u:hunter2@a:1,b:2/d', 'must name one'],
  ['IMDS_API_DATABASE', 'postgres://u@a,u@b/d', 'must name one'],
  ['IMDS_API_DATABASE', 'postgres://u@a/d?host=b,c', 'must name one'],
  ['IMDS_API_DATABASE', 'postgres://u@a/d?target_session_attrs=read-write', 'must not have target_session_attrs'],
  ['IMDS_API_DATABASE', 'embedded', 'must be postgres:'],
  ['IMDS_API_DATABASE', '', 'is not set: make a database (createdb '],
])('%s=%s is refused: it %s', (variable, value, fault) => {
  const faults = faultsOf({ [variable]: value })
  expect(faults).toEqual([expect.stringContaining(`${variable} ${fault}`)])
  expect(faults[0]).not.toContain('hunter2')
})

test.each<[Record<string, string>, string]>([
  [{ IMDS_API_LISTEN: 'unix:/x' }, 'IMDS_API_BASE_URL is not set: with unix sockets only'],
  [{ IMDS_API_TLS_CERT_FILE: '/c' }, 'IMDS_API_TLS_KEY_FILE is not set'],
  [{ IMDS_API_TLS_KEY_FILE: '/k' }, 'IMDS_API_TLS_CERT_FILE is not set'],
  [{ IMDS_STORE: 'redis://r:6379' }, 'IMDS_REGION '],
])('%j lacks another variable: %s', (env, fault) => expect(faultsOf(env)).toEqual([expect.stringContaining(fault)]))

test('everything that is wrong is named at once', () => {
  const variables = ['LISTEN', 'OPERATOR_LISTEN', 'BASE_URL', 'DATABASE', 'AUDIT_FILE', 'LOG_LEVEL'].map(
    (name) => `IMDS_API_${name}`,
  )
  const faults = faultsOf(Object.fromEntries([...variables, 'IMDS_STORE'].map((name) => [name, 'x'])))
  expect(faults.map((fault) => fault.split(' ', 1)[0]).sort()).toEqual([...variables, 'IMDS_STORE'].sort())
})

test('every listener that is wrong is named at once', () => {
  expect(faultsOf({ IMDS_API_LISTEN: 'x,unix:/run/x,[127.0.0.1]:1' }).map((fault) => fault.split(' ', 2)[1])).toEqual([
    '"x"',
    '"[127.0.0.1]:1"',
  ])
})

test('unknown variables of imds-api are reported', () => {
  expect(parseApiConfig({ ...FILES, IMDS_API_LISTENS: '1', IMDS_LISTEN: '2', PATH: '/' })).toMatchObject({
    ok: true,
    unknown: ['IMDS_API_LISTENS'],
  })
})
