/** Who may use the compute interface, with processes and real certificates. */
import { once } from 'node:events'
import { X509Certificate } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { request as httpRequest } from 'node:http'
import { request as httpsRequest, type RequestOptions } from 'node:https'
import { join } from 'node:path'
import { pino } from 'pino'
import t from 'tap'
import { parseApiConfig } from '../../src/imds-api/service/config.ts'
import { startApi } from '../../src/imds-api/service/service.ts'
import { withoutDetails } from '../support/error-bodies.ts'
import { aRegion } from '../support/fixtures/region.ts'
import { anApi, startImdsApi, startProcess, type TestImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { freePort } from '../support/redis/redis.ts'
import { anAuthority, type Certificate } from '../support/redis/tls.ts'
import { shortDirectory } from '../support/test-directory.ts'

interface Action {
  readonly id: number
  readonly action: string
  readonly server: { readonly id: string }
}
interface Answer {
  readonly status: number
  readonly body: unknown
}

/** Sends a request to a compute interface. Rejects where the connection fails. */
async function send(options: RequestOptions, method: string, path: string, body?: object): Promise<Answer> {
  const start = options.ca === undefined ? httpRequest : httpsRequest
  const text = body === undefined ? '' : JSON.stringify(body)
  const request = start({
    agent: false,
    ...options,
    method,
    path,
    headers: { 'content-type': 'application/json', 'content-length': String(text.length) },
  })
  request.end(text)
  const [response] = (await once(request, 'response')) as [NodeJS.ReadableStream & { statusCode: number }]
  const chunks: Buffer[] = []
  for await (const chunk of response) chunks.push(chunk as Buffer)
  return { status: response.statusCode, body: withoutDetails(JSON.parse(Buffer.concat(chunks).toString())) }
}

interface Server {
  readonly id: string
  readonly status: string
}
const createServer = async ({ call }: TestImdsApi, zone: string) =>
  ((await call('POST', 'servers', { image: 'img-deb12', zone })).body as Server).id
const statusOf = async ({ call }: TestImdsApi, id: string) =>
  ((await call('GET', `servers/${id}`)).body as Server).status

/** One hypervisor a zone, so that the zone of a server says which one gets it. */
const region = aRegion({
  hypervisors: [
    { name: 'hv-1', zone: 'gb1-a', ram: 65_536 },
    { name: 'hv-3', zone: 'gb1-b', ram: 65_536 },
  ],
})

t.test('a hypervisor with a certificate sees its own actions and servers only', async (t) => {
  const directory = shortDirectory(t)
  const [authority, other] = [await anAuthority(directory, 'ours'), await anAuthority(directory, 'theirs')]
  const [own, one, three, expired, foreign] = [
    await authority.issue('api'),
    await authority.issue('hv-1'),
    await authority.issue('hv-3'),
    await authority.issue('hv-1-old', -1),
    await other.issue('hv-1'),
  ]
  const port = await freePort()
  const api = await startImdsApi(
    t,
    {
      IMDS_API_COMPUTE: 'reported',
      IMDS_API_COMPUTE_LISTEN: `127.0.0.1:${port}`,
      IMDS_API_COMPUTE_TLS_CERT_FILE: own.certFile,
      IMDS_API_COMPUTE_TLS_KEY_FILE: own.keyFile,
      IMDS_API_COMPUTE_TLS_CLIENT_CA_FILE: authority.caFile,
    },
    region,
  )
  const as = (certificate: Certificate | undefined) => (method: string, path: string, body?: object) =>
    send(
      {
        host: '127.0.0.1',
        port,
        ca: readFileSync(authority.caFile),
        ...(certificate !== undefined && {
          cert: readFileSync(certificate.certFile),
          key: readFileSync(certificate.keyFile),
        }),
      },
      method,
      path,
      body,
    )
  const days = (new X509Certificate(readFileSync(own.certFile)).validToDate.getTime() - Date.now()) / 86_400_000
  const series = 'imds_condition{code="certificate-ends",severity="warning"}'
  t.match(await api.metrics(), `\n${series} ${Number(days < 14)}\n`)
  const [asOne, asThree] = [as(one), as(three)]
  const [onOne, onThree] = [await createServer(api, 'gb1-a'), await createServer(api, 'gb1-b')]

  const { body } = await asThree('GET', '/hypervisors/hv-3/actions?wait=60')
  const [action] = body as Action[]
  t.match(body, [{ action: 'create', server: { id: onThree } }])
  t.equal((body as Action[]).length, 1)
  const missing = (what: string) => ({
    status: 404,
    body: { error_name: 'resource_not_found', errors: [`${what} does not exist`] },
  })
  t.strictSame(await asOne('GET', '/hypervisors/hv-3/actions'), missing('the hypervisor hv-3'))
  const outcome = { outcome: 'succeeded' }
  t.strictSame(
    await asOne('POST', `/hypervisors/hv-3/actions/${action!.id}/outcome`, outcome),
    missing('the hypervisor hv-3'),
  )
  t.strictSame(
    await asOne('POST', `/hypervisors/hv-1/actions/${action!.id}/outcome`, outcome),
    missing(`the action ${action!.id}`),
  )
  for (const [method, path] of [
    ['GET', ''],
    ['POST', '/migration'],
    ['POST', '/migration/end'],
    ['DELETE', '/migration'],
    ['POST', '/seal'],
  ] as const) {
    t.strictSame(
      await asOne(method, `/servers/${onThree}${path}`, method === 'GET' ? undefined : { to: 'hv-1' }),
      missing(`the server ${onThree}`),
      `${method} ${path}`,
    )
  }
  t.match(await asOne('GET', `/servers/${onOne}`), { status: 200, body: { hypervisor: 'hv-1' } })
  t.match(await asOne('GET', '/hypervisors/hv-1/actions?wait=60'), { status: 200, body: [{ server: { id: onOne } }] })
  t.match(await asThree('POST', `/hypervisors/hv-3/actions/${action!.id}/outcome`, outcome), { status: 200 })
  t.match(await asOne('POST', `/servers/${onOne}/seal`), { status: 200 })
  const audit = () => api.log.filter(({ msg }) => msg === 'audit')
  await until(() => audit().at(-1)?.['route'] === '/servers/:id/seal', 'the last audit line')
  t.match(
    audit().slice(-2),
    [
      { hypervisor: 'hv-3', action: String(action!.id), id: onThree, method: 'POST' },
      { hypervisor: 'hv-1', route: '/servers/:id/seal', id: onOne },
    ],
    'the audit lines name the hypervisor of the certificate',
  )

  for (const [what, certificate] of [
    ['no certificate', undefined],
    ['an expired one', expired],
    ['one of another authority', foreign],
  ] as const) {
    await t.rejects(as(certificate)('GET', '/hypervisors/hv-1/actions'), /alert|ECONNRESET|socket hang up|EPIPE/, what)
  }
  t.strictSame(
    api.log.filter(({ level, code }) => level !== 'info' && code !== 'certificate-ends'),
    [],
  )
  t.equal(await api.stop(), 0)
})

t.test('on a unix socket the caller names its hypervisor', async (t) => {
  const socketPath = join(shortDirectory(t), 'compute.sock')
  const api = await startImdsApi(
    t,
    { IMDS_API_COMPUTE: 'reported', IMDS_API_COMPUTE_LISTEN: `unix:${socketPath}` },
    region,
  )
  const id = await createServer(api, 'gb1-b')
  t.match(await send({ socketPath }, 'GET', '/hypervisors/hv-3/actions?wait=60'), {
    status: 200,
    body: [{ server: { id } }],
  })
  t.match(await send({ socketPath }, 'GET', '/hypervisors/hv-1/actions'), { status: 200, body: [] })
  const aborted = httpRequest({ socketPath, path: '/hypervisors/hv-1/actions?wait=60' }).on('error', () => undefined)
  aborted.end()
  await once(aborted, 'finish')
  t.match(await send({ socketPath }, 'GET', '/hypervisors/hv-1/actions'), { status: 200, body: [] })
  aborted.destroy()
  t.match(await send({ socketPath }, 'GET', '/hypervisors/hv-1/actions'), { status: 200, body: [] })
  const other = await createServer(api, 'gb1-a')
  t.match(
    await send({ socketPath }, 'GET', '/hypervisors/hv-1/actions?wait=60'),
    { status: 200, body: [{ server: { id: other } }] },
    'a connection that is closed got nothing',
  )
  const waiting = send({ socketPath }, 'GET', '/hypervisors/hv-1/actions?wait=60')
  await send({ socketPath }, 'GET', '/hypervisors/hv-1/actions')
  t.equal(await api.stop(), 0)
  t.match(await waiting, { status: 200, body: [] }, 'a stop answers the requests that wait')
})

t.test('at a start with IMDS_API_COMPUTE=none the actions that wait have succeeded, in their order', async (t) => {
  const socketPath = join(shortDirectory(t), 'compute.sock')
  const reported = await startImdsApi(
    t,
    { IMDS_API_COMPUTE: 'reported', IMDS_API_COMPUTE_LISTEN: `unix:${socketPath}` },
    region,
  )
  const [stopped, restarted] = [await createServer(reported, 'gb1-a'), await createServer(reported, 'gb1-a')]
  const carriedOut: number[] = []
  while (carriedOut.length < 2) {
    const { body } = await send({ socketPath }, 'GET', '/hypervisors/hv-1/actions?wait=60')
    for (const { id } of body as Action[]) {
      await send({ socketPath }, 'POST', `/hypervisors/hv-1/actions/${id}/outcome`, { outcome: 'succeeded' })
      carriedOut.push(id)
    }
  }
  for (const id of [stopped, restarted])
    await until(async () => (await statusOf(reported, id)) === 'active', 'the server to be active')
  const [created, deleted] = [await createServer(reported, 'gb1-a'), await createServer(reported, 'gb1-a')]
  for (const [method, path] of [
    ['POST', `${stopped}/stop`],
    ['POST', `${restarted}/stop`],
    ['POST', `${restarted}/start`],
    ['DELETE', deleted],
  ] as const)
    t.equal((await reported.call(method, `servers/${path}`)).status, 202, `${method} ${path}`)
  await send({ socketPath }, 'GET', '/hypervisors/hv-1/actions')
  await reported.stop()

  const none = await startProcess(t, { ...reported.env, IMDS_API_COMPUTE: 'none' })
  t.match(
    none.log.filter(({ level }) => level === 'warn'),
    [{ actions: 6, msg: 'actions that waited for the compute system have succeeded, since IMDS_API_COMPUTE is none' }],
  )
  t.strictSame([await statusOf(none, stopped), await statusOf(none, restarted)], ['inactive', 'active'])
  await until(
    async () => (await statusOf(none, created)) === 'active' && (await statusOf(none, deleted)) === 'deleted',
    'the servers to be created and deleted',
  )
  await none.stop()
  const again = await startProcess(t, none.env)
  t.strictSame(
    again.log.filter(({ level }) => level === 'warn'),
    [],
  )
})

t.test('a start that fails, because a certificate cannot be read, leaves nothing running', async (t) => {
  const { directory, url } = await anApi(t)
  const parsed = parseApiConfig({
    IMDS_API_DATABASE: url,
    IMDS_API_LISTEN: '127.0.0.1:0',
    IMDS_API_OPERATOR_LISTEN: '127.0.0.1:0',
    IMDS_API_COMPUTE: 'reported',
    IMDS_API_COMPUTE_TLS_CERT_FILE: '/none',
    IMDS_API_COMPUTE_TLS_KEY_FILE: '/none',
    IMDS_API_COMPUTE_TLS_CLIENT_CA_FILE: '/none',
    IMDS_STORE: `file:${join(directory, 'store')}`,
  })
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.faults))
  const timers = () => process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length
  const before = timers()
  await t.rejects(startApi(parsed.value, pino({ enabled: false })), { code: 'ENOENT' })
  await until(() => timers() <= before, 'all timers to end')
})
