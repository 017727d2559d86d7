/** `imds-api bugreport`: what it has, and that no secret and no customer is in it, from any place that has one. */
import { randomBytes } from 'node:crypto'
import { chmodSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { MIGRATIONS } from '../../src/imds-api/database/migrate.ts'
import { formatHostPort } from '../../src/runtime/host-port.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { ADAS_KEY, aRegion, CLIENT_OF, ONE, secretOf } from '../support/fixtures/region.ts'
import { besideEnvironment, startImdsApi } from '../support/programs/api.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { run } from '../support/programs/processes.ts'
import { startRedis } from '../support/redis/redis.ts'
import { shortDirectory } from '../support/test-directory.ts'

const directory = shortDirectory(t)
const canary = (place: string) => `canary-${place}-${randomBytes(6).toString('hex')}`
const file = (name: string, text: string) => {
  writeFileSync(join(directory, name), text, { mode: 0o600 })
  return join(directory, name)
}
const passwords = { redis: canary('redis'), database: canary('database'), smtp: canary('smtp'), operator: canary('op') }
const recordKeys = keyLines('k1', 'k2')
const inUrl = canary('url')
const inEnvironment = canary('environment')
const inLog = { password: canary('log-password'), key: canary('log-key'), other: canary('log-other') }
/** Too short to be removed wherever it occurs. */
const short = 'pin42'
const customer = { name: canary('server'), userData: canary('user-data') }

const redis = await startRedis(t)
await redis.client.config('SET', 'requirepass', passwords.redis)
const settings = {
  IMDS_STORE: redis.url,
  IMDS_REGION: 'gb1',
  IMDS_REDIS_PASSWORD_FILE: file('redis', `${passwords.redis}\n`),
  IMDS_RECORD_KEYS_FILE: file('record-keys', recordKeys),
  IMDS_API_SMTP: 'smtp://imds@127.0.0.1:1',
  IMDS_API_SMTP_PASSWORD_FILE: file('smtp', `${passwords.smtp}\n`),
  IMDS_API_MAIL_FROM: 'noreply@example.com',
  IMDS_API_INVITATION_URL: 'https://cloud.example.com/invitations',
  IMDS_API_OPERATOR_PASSWORD_FILE: file('operator', `${passwords.operator}\n`),
}
const api = await startImdsApi(t, { ...settings, IMDS_API_DATABASE: 'embedded' })
const user_data = Buffer.from(customer.userData).toString('base64')
const created = await api.call('POST', 'servers', { image: 'img-deb12', name: customer.name, user_data })
const token = await api.token(CLIENT_OF[ONE])
const { users, accounts } = aRegion()

// The journal and the units of a host without systemd: any of these could be printed there.
const leaks = [
  { level: 'warn', reason: `passwords ${Object.values(passwords).join(' ')}` },
  { level: 'warn', reason: `in base64 ${Buffer.from(passwords.database).toString('base64')}, keys ${recordKeys}` },
  { level: 'error', headers: { authorization: `Bearer ${token}` }, client_secret: secretOf(CLIENT_OF[ONE]) },
  {
    level: 'error',
    err: { message: 'null', detail: `Failing row contains (${users[0]!.name}, "${accounts[0]!.name}").` },
  },
  { level: 'warn', code: 'invitation-not-sent', reason: `550 no mailbox ${users[0]!.email_address}` },
  { level: 'warn', reason: `postgres://imds:${inLog.password}@db.example.com` },
  { level: 'warn', reason: `-----BEGIN PRIVATE KEY-----\n${inLog.key}\n-----END PRIVATE KEY-----` },
  { time: '2026-11-20T15:04:05Z', user: users[0]!.id, address: '192.0.2.77', method: 'POST' }, // an audit line
].map((line) => JSON.stringify(line))
const journal = [...leaks, `PGPASSWORD=${inLog.other}`, 'ended'].map((line) => `2026-11-20 host imds-api[7]: ${line}`)
const unit = [
  '# /etc/systemd/system/imds-api.service.d/local.conf',
  `# Environment=COMMENTED=${short}`,
  '[Service]',
  `Environment=IMDS_REGION=gb1 PIN=${short}`,
  `SetCredential=pin:${short}`,
  'User=imds-api',
]
const bin = join(directory, 'bin')
mkdirSync(bin)
for (const [name, lines] of Object.entries({ journalctl: journal, systemctl: unit })) {
  writeFileSync(join(bin, name), `#!/bin/sh\ncat <<'END'\n${lines.join('\n')}\nEND\n`)
  chmodSync(join(bin, name), 0o755)
}
const { hostname: host, port } = new URL(api.operatorUrl)
const environment = {
  ...besideEnvironment(api.env),
  IMDS_API_OPERATOR_LISTEN: formatHostPort({ host, port: Number(port) }),
  IMDS_API_DATABASE_PASSWORD_FILE: file('database', `${passwords.database}\n`),
  IMDS_API_PASSWORD: inEnvironment,
  OTHER: `"${inEnvironment}"`,
  PIN: short,
}
const fileOf = (name: string, variables: Readonly<Record<string, string>>) =>
  file(
    name,
    Object.entries(variables)
      .map((variable) => variable.join('='))
      .join('\n'),
  )
const asRun = fileOf('imds-api.env', environment)

async function bugreport(path: string, env: NodeJS.ProcessEnv = {}, environmentFile = asRun) {
  const own = programEnvironment()
  return run([process.execPath, IMDS_API, '--environment-file', environmentFile, 'bugreport', path], {
    env: { ...own, PATH: `${bin}:${String(own['PATH'])}`, ...env },
  })
}

t.test('a bug report has what is known of imds-api, and no secret and no customer', async (t) => {
  t.equal(created.status, 202)
  const secrets = [
    ...[short, inUrl, inEnvironment, token, secretOf(CLIENT_OF[ONE]), customer.name, customer.userData, ADAS_KEY],
    ...[...Object.values(passwords), ...Object.values(inLog), '192.0.2.77'],
    ...recordKeys.split(/[\s:]+/).filter((text) => text.length > 20),
    ...users.flatMap(({ name, email_address }) => [name, email_address]),
    ...accounts.flatMap(({ name, address_1, telephone_number }) => [name, address_1, telephone_number]),
  ].filter((text) => text !== undefined)
  const path = join(directory, 'report.txt')
  const databases = [
    undefined,
    `postgres://imds:${inUrl}@127.0.0.1:1/imds`,
    `postgres://imds@127.0.0.1:1/imds?password=${inUrl}&sslmode=disable`,
  ]
  for (const url of databases) {
    const { status, stdout, stderr } = await bugreport(path, url === undefined ? {} : { IMDS_API_DATABASE: url })
    t.equal(status, 0, stderr)
    t.match(stdout.toString(), /^wrote .*report\.txt: read it before you send it/)
    t.equal(statSync(path).mode & 0o777, 0o600)
    const report = readFileSync(path, 'utf8')
    const expected = [
      /^===== report\nimds-api \d/,
      /^===== doctor\n\[\n[^]*"check": "configuration"/m,
      /^IMDS_REGION=gb1$/m,
      /^IMDS_API_PASSWORD=\[removed\]$/m,
      /^OTHER=\[removed\]$/m,
      /^Environment=IMDS_REGION=gb1 \[removed\]\n\[removed\]\nUser=imds-api$/m,
      /imds-api\[7\]: \[removed\]\n.*PGPASSWORD=\[removed\]\n.*imds-api\[7\]: ended$/m,
      /^===== \$ ss -Hltnp\n.*LISTEN/m,
    ]
    const ofService = [
      /"check": "service",\n +"state": "ok"/,
      /^===== status\n\{\n +"imds-api": ".*, ready, started /m,
      /^===== readyz\n\{"ready":true/m,
      /^imds_build_info\{/m,
      new RegExp(`^===== migrations\n${Object.keys(MIGRATIONS).join('\n')}\n`, 'm'),
    ]
    for (const text of [...expected, ...(url === undefined ? ofService : [])]) t.match(report, text)
    for (const secret of secrets)
      for (const encoding of ['utf8', 'base64', 'base64url', 'hex'] as const) {
        const text = Buffer.from(secret).toString(encoding).replace(/=+$/, '')
        t.notOk(report.includes(text), `${secret} as ${encoding}`)
      }
    rmSync(path)
  }
  t.match(await bugreport(asRun), { status: 66, stderr: /imds-api\.env cannot be written: EEXIST/ })
})

t.test('without the service and its database, the report says so, and starts no PostgreSQL', async (t) => {
  t.equal(await api.stop(), 0)
  const { status, stdout, stderr } = await bugreport('-', {}, fileOf('embedded.env', api.env))
  t.equal(status, 0, stderr)
  t.match(
    stdout.toString(),
    /"check": "service",\n +"state": "failure",\n +"text": "it does not answer: .*ECONNREFUSED/,
  )
  t.match(stdout.toString(), /^===== migrations\n\(the database cannot be reached: .*\)$/m)
})
