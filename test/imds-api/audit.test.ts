/**
 * The audit lines: who changed what. And no secret is seen: not in the log, the audit lines, the metrics or the responses,
 * whatever goes wrong with a token request.
 */
import { Secret, TOTP } from 'otpauth'
import t from 'tap'
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
  t.strictSame(audit, [line])
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

const [ada, grace] = aRegion().users
const region = aRegion({
  users: [withFiles(ada!, `${ADA}.password`, 'ada.totp'), grace!],
  applications: [{ id: APPLICATION, account: ONE, name: 'Dashboard', secret_file: `${APPLICATION}.secret` }],
})
const JSON_TYPE = { 'content-type': 'application/json' }

t.test('a change has its line in the log; no secret or code is in the log, the metrics or an error', async (t) => {
  const api = await startImdsApi(t, { IMDS_API_LOG_LEVEL: 'debug' }, region)
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
  t.match(
    api.log.filter(({ msg }) => msg === 'audit'),
    [
      { user: ADA, set: ['name'] },
      { level: 'info', route: '/1.0/applications/:id/reset_secret', id },
    ],
  )
  seen.push(JSON.stringify(api.log))
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
