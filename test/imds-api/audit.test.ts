/**
 * The audit lines: who changed what. And no secret is seen: not in the log, the audit lines, the metrics or the responses,
 * whatever goes wrong with a token request.
 */
import { execFileSync } from 'node:child_process'
import {
  closeSync,
  constants,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import { Secret, TOTP } from 'otpauth'
import t, { type Test } from 'tap'
import {
  ADA,
  APPLICATION,
  aRegion,
  CLIENT_OF,
  GRACE,
  ONE,
  secretOf,
  TOTP_SECRET,
  TWO,
  withFiles,
} from '../support/fixtures/region.ts'
import { anApi, basic, startImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { testDirectory } from '../support/test-directory.ts'

const SECRET = 'c2VjcmV0IHVzZXItZGF0YQ=='

t.test('a change leaves one line with who changed what, and no values', async (t) => {
  const { audit, call } = await anApi(t)
  const { headers, body } = await call('POST', '/1.0/servers', {
    image: 'img-deb12',
    name: 'private',
    user_data: SECRET,
    unknown: 1,
  })
  const { id } = body as { id: string }
  const line = {
    client: CLIENT_OF[ONE],
    account: ONE,
    address: '127.0.0.1',
    method: 'POST',
    route: '/1.0/servers',
    id,
    set: ['image', 'name', 'user_data'],
    request_id: headers['x-request-id'],
  }
  const [{ time, ...first } = {}, ...others] = audit
  t.strictSame([first, others], [line, []])
  t.ok(Date.parse(String(time)) > 0)
  await call('PUT', `/1.0/servers/${id}/lock_resource`)
  await call('PUT', `/1.0/servers/${id}?token=private`, { name: 'private' })
  t.match(audit.slice(1), [
    { method: 'PUT', route: '/1.0/servers/:id/lock_resource', id, set: undefined },
    { method: 'PUT', route: '/1.0/servers/:id', id, set: ['name'] },
  ])
  t.notMatch(JSON.stringify(audit), new RegExp(`${SECRET}|private|Bearer`))
})

t.test('a request that reads, or that was refused, leaves no line', async (t) => {
  const { audit, call, callWith } = await anApi(t)
  await call('GET', '/1.0/servers')
  t.equal((await call('POST', '/1.0/servers', {})).status, 422)
  t.equal((await call('DELETE', '/1.0/cloud_ips/cip-none1')).status, 404)
  t.equal((await callWith('wrong', 'POST', '/1.0/cloud_ips')).status, 401)
  t.equal((await call('POST', '/1.0/load_balancers', {})).status, 501)
  t.strictSame(audit, [])
})

t.test('the line of a user names the user, the application and the account', async (t) => {
  const { audit, callWith, userToken } = await anApi(t)
  t.equal((await callWith(await userToken(ADA), 'POST', `/1.0/cloud_ips?account_id=${TWO}`)).status, 201)
  t.match(audit, [{ user: ADA, client: /^app-/, account: TWO, id: /^cip-/ }])
})

/** Starts imds-api with an audit file. `create`: makes a cloud IP and returns its id. */
async function startAudited(t: Test, file: string, stderr?: number) {
  const api = await startImdsApi(t, { IMDS_API_AUDIT_FILE: file }, undefined, stderr)
  return { api, create: async () => ((await api.call('POST', 'cloud_ips')).body as { id: string }).id }
}

/** The ids in the lines of a text. */
const idsIn = (text: string) =>
  text
    .trim()
    .split('\n')
    .map((line) => (JSON.parse(line) as { id: string }).id)
const hasLines = (file: string) => existsSync(file) && readFileSync(file, 'utf8') !== ''

t.test('lines are in IMDS_API_AUDIT_FILE before the response, and in a new file after SIGHUP', async (t) => {
  const directory = join(testDirectory(t, { log: {} }), 'log')
  const [file, errors] = [join(directory, 'audit'), `${directory}.stderr`]
  const stderr = openSync(errors, 'w')
  const { api, create } = await startAudited(t, file, stderr)
  closeSync(stderr)
  const first = await create()
  t.strictSame(idsIn(readFileSync(file, 'utf8')), [first])
  t.equal(statSync(file).mode & 0o777, 0o600, 'only its owner reads it, whatever the umask')
  api.process.kill('SIGUSR1') // it would open the debugger of Node.js
  renameSync(file, `${file}.1`)
  api.process.kill('SIGHUP')
  await until(async () => {
    await create()
    return hasLines(file)
  }, 'a line in the new file')
  t.equal(idsIn(readFileSync(`${file}.1`, 'utf8'))[0], first)
  t.equal(statSync(file).mode & 0o777, 0o600)

  await t.test('without a file to open, the lines go to the old one, and the log has the reason', async (t) => {
    const faults = () =>
      api.log.filter(
        ({ msg }) => msg === 'the audit file cannot be opened again: lines are still written to the old one',
      )
    renameSync(directory, `${directory}.1`)
    api.process.kill('SIGHUP')
    await until(() => faults().length === 1, 'the error of the missing directory')
    t.match(faults(), [{ level: 'error', reason: /ENOENT/ }])
    const id = await create()
    t.equal(idsIn(readFileSync(join(`${directory}.1`, 'audit'), 'utf8')).at(-1), id)
    mkdirSync(file, { recursive: true })
    api.process.kill('SIGHUP')
    await until(() => faults().length === 2, 'the error of the directory in place of the file')
    t.match(faults()[1], { reason: /EISDIR/ })
    renameSync(directory, `${directory}.2`)
    mkdirSync(directory)
    api.process.kill('SIGHUP')
    await until(async () => {
      await create()
      return hasLines(file)
    }, 'a line in the new file')
  })
  t.equal(await api.stop(), 0)
  t.equal(api.log.filter(({ level }) => level === 'error').length, 2, 'the old file is closed once')
  t.equal(readFileSync(errors, 'utf8'), '', 'Node.js would print where its debugger listens')
})

t.test('a full disk stops no change; its lines are in the new file after SIGHUP, in their order', async (t) => {
  const file = join(testDirectory(t), 'audit')
  symlinkSync('/dev/full', file)
  const { api, create } = await startAudited(t, file)
  const ids = [await create(), await create(), await create()]
  t.match(
    api.log.filter(({ msg }) => msg.startsWith('an audit line cannot be written')),
    [{ level: 'error', reason: /ENOSPC/ }],
  )
  rmSync(file)
  api.process.kill('SIGHUP')
  await until(() => hasLines(file), 'the new file')
  ids.push(await create())
  t.strictSame(idsIn(readFileSync(file, 'utf8')), ids)
})

t.test('a file that cannot be opened refuses the start, and names the variable', async (t) => {
  await t.rejects(startAudited(t, '/nonexistent/audit'), /IMDS_API_AUDIT_FILE cannot be opened.*ENOENT/)
})

t.test('while nobody reads standard error, changes are made, and their lines arrive once it is read', async (t) => {
  const fifo = join(testDirectory(t), 'stderr')
  execFileSync('mkfifo', [fifo])
  const fd = openSync(fifo, constants.O_RDWR | constants.O_NONBLOCK)
  t.teardown(() => closeSync(fd))
  const { api, create } = await startAudited(t, '', fd)
  const filler = Buffer.alloc(1 << 12, '\n')
  t.throws(
    () => {
      for (;;) writeSync(fd, filler)
    },
    { code: 'EAGAIN' },
    'the pipe is full',
  )
  const ids = [await create(), await create(), await create()]
  let text = ''
  const read = () => {
    const chunk = Buffer.alloc(1 << 17)
    text += chunk.toString('utf8', 0, readSync(fd, chunk))
  }
  read()
  t.equal(await api.stop(), 0) // the lines are flushed at the exit
  read()
  t.strictSame(idsIn(text), ids)
})

const [ada, grace] = aRegion().users
const region = aRegion({
  users: [withFiles(ada!, `${ADA}.password`, 'ada.totp'), grace!],
  applications: [{ id: APPLICATION, account: ONE, name: 'Dashboard', secret_file: `${APPLICATION}.secret` }],
})
const JSON_TYPE = { 'content-type': 'application/json' }

t.test('no secret, password, token or code is in a log line, an audit line, a metric or an error', async (t) => {
  const audit = join(testDirectory(t), 'audit.log')
  const api = await startImdsApi(t, { IMDS_API_LOG_LEVEL: 'debug', IMDS_API_AUDIT_FILE: audit }, region)
  const codes = [-10, 0, 30].map((seconds) =>
    new TOTP({ secret: Secret.fromBase32(TOTP_SECRET) }).generate({ timestamp: Date.now() + seconds * 1000 }),
  )
  const wrong = ['wr0ng-secret-of-a-client', 'wr0ng-password', 'wr0ng-refresh-token', 'wr0ng-access-token']
  const [wrongSecret, wrongPassword, wrongRefresh, wrongAccess] = wrong as [string, string, string, string]
  const seen: string[] = []
  const post = async (body: string | object, headers: object = {}) => {
    const payload = typeof body === 'string' ? body : JSON.stringify(body)
    const response = await fetch(`${api.baseUrl}/token`, {
      method: 'POST',
      headers: { authorization: basic(APPLICATION), ...JSON_TYPE, ...headers },
      body: payload,
    })
    const text = await response.text()
    if (!response.ok) seen.push(text, JSON.stringify([...response.headers]))
    return { status: response.status, body: JSON.parse(text) as Readonly<Record<string, string>> }
  }
  const password = { grant_type: 'password', username: ADA, password: secretOf(ADA) }
  const refused: readonly (readonly [number, string | object, object?])[] = [
    [401, password, { authorization: basic(APPLICATION, wrongSecret) }],
    [401, password, { authorization: basic('cli-none1', wrongSecret) }],
    [401, { ...password, password: wrongPassword }],
    [401, { ...password, username: secretOf(GRACE) }],
    [401, password],
    [401, password, { 'x-service-otp': '000000' }],
    [401, { ...password, password: `${secretOf(ADA)}+000000` }],
    [400, { ...password, password: [secretOf(ADA)] }],
    [400, { ...password, scope: secretOf(ADA) }],
    [400, { grant_type: secretOf(ADA) }],
    [400, { grant_type: 'refresh_token', refresh_token: wrongRefresh }],
    [400, `{"password":"${secretOf(ADA)}`],
    [400, `{"password":${secretOf(ADA)}}`],
    [400, `password=${secretOf(ADA)}`, { 'content-type': 'text/plain' }],
    [400, secretOf(ADA)],
    [401, 'x', { ...JSON_TYPE, authorization: `Basic ${secretOf(ADA)}` }],
  ]
  for (const [status, body, headers] of refused.slice(0, -1))
    t.equal((await post(body, headers)).status, status, JSON.stringify(body))
  t.ok((await post(refused.at(-1)![1], refused.at(-1)![2])).status >= 400)
  const { body: first } = await post(password, { 'x-service-otp': codes[1] })
  const { body: second } = await post({ grant_type: 'refresh_token', refresh_token: first['refresh_token'] })
  t.equal((await post(password, { 'x-service-otp': codes[1] })).status, 401, 'a code that was used')
  for (const token of [wrongAccess, second['access_token']!]) {
    for (const url of ['/1.0/user', '/1.0/servers', '/1.0/servers/%00', `/1.0/${wrongAccess}`]) {
      const response = await fetch(`${api.baseUrl}${url}`, { headers: { authorization: `Bearer ${token}` } })
      if (!url.includes(wrongAccess)) seen.push(await response.text())
    }
  }
  const made = await fetch(`${api.baseUrl}/1.0/applications?account_id=${ONE}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${second['access_token']!}`, ...JSON_TYPE },
    body: '{"name":"x"}',
  })
  const { id } = (await made.json()) as { id: string }
  const reset = await fetch(`${api.baseUrl}/1.0/applications/${id}/reset_secret?account_id=${ONE}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${second['access_token']!}` },
  })
  const { secret } = (await reset.json()) as { secret: string }
  for (let i = 0; i < 12; i++) await post({ ...password, password: wrongPassword })
  t.equal((await post({ ...password, password: wrongPassword })).status, 429)
  seen.push(await (await fetch(`${api.operatorUrl}/metrics`)).text())
  await api.stop()
  await until(() => readFileSync(audit, 'utf8').includes('reset_secret'), 'the audit line')
  seen.push(readFileSync(audit, 'utf8'), JSON.stringify(api.log))
  t.ok(api.log.length > 1)
  const texts = [
    ...wrong,
    secret,
    secretOf(ADA),
    secretOf(GRACE),
    secretOf(APPLICATION),
    secretOf(CLIENT_OF[ONE]),
    TOTP_SECRET,
    first['access_token']!,
    first['refresh_token']!,
    second['access_token']!,
    second['refresh_token']!,
    '$scrypt$',
    basic(APPLICATION).slice(6),
  ]
  for (const text of texts)
    for (const output of seen) t.notOk(output.includes(text), `${text}: ${output.slice(0, 120)}`)
  for (const code of codes)
    // not as a part of a number
    for (const output of seen) t.notOk(new RegExp(`(?<![\\d.])${code}(?![\\d.])`).test(output), 'a code')
})
