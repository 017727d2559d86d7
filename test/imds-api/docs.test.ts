/**
 * The examples of documents, executed in a shell as a reader does: docs/api.md, docs/accounts.md and
 * docs/region-file.md against the imds-api that the first example starts; docs/compute.md against one whose hypervisors
 * are in one zone; and the recipes of docs/api.md (deploy/client/api.sh) through a proxy that cuts the connection after
 * the first response to each key, so that the change is made, and nobody knows.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer, request as send } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { buildApiMetrics, type ApiMetricsSources } from '../../src/imds-api/service/metrics.ts'
import { aRegion, ONE, secretOf } from '../support/fixtures/region.ts'
import { anApi, basic, startImdsApi, type Method, type TestApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { must } from '../support/programs/processes.ts'
import { makeDatabase } from '../support/programs/shared-postgres.ts'
import { freePort } from '../support/redis/redis.ts'
import { executed, ROOT } from '../tools/documents.ts'
import { shortDirectory } from '../support/test-directory.ts'

/** The fields of a response that identify it. */
type Json = Readonly<Record<'resource_type' | 'name' | 'status' | 'error_name' | 'token_type', string | undefined>> & {
  readonly errors?: readonly string[]
}

/**
 * The examples in their order, and what each prints: resources as `resource_type status`, errors as their name; n of a
 * list.
 */
const EXAMPLES = [
  [executed('docs/api.md', 'five'), /^\+ region gb1\n[^]*\n(?:creating|active)\n$/],
  [executed('docs/api.md', 'function'), []],
  [
    executed('docs/api.md', 'lists'),
    /^\[\]\n\[\{"id":"zon-\w+".*"handle":"gb1-a"\}\]\n\[\{"id":"zon-\w+".*"handle":"gb1-b"\}\]\n$/,
  ],
  [
    executed('docs/api.md', 'events'),
    /^watched\nServer group (grp-\w+) was created by cli-3d0kz\nServer group \1 was deleted by cli-3d0kz\n\[\{"id":"\w+-\d+","resource_type":"event",[^\n]*"affects":\[\{"id":"\1",[^\n]*\}\]\n$/,
  ],
  [executed('docs/api.md', 'servers'), ['server db', 'server web-1', '2 server']],
  [executed('docs/api.md', 'actions'), ['server web-1', 'server web-1', 'server web-1']],
  [
    executed('docs/accounts.md', 'sign-in'),
    /^~ user usr-k3c8e: password_hash, totp_secret\n\+ application app-8xk2p\n\{"error":"invalid_client".*\n\{"id":"usr-k3c8e".*\n\{"id":"acc-h3nbk".*\n$/,
  ],
  [executed('docs/accounts.md', 'api-clients'), ['Bearer', 'api_client backup']],
  [
    executed('docs/region-file.md', 'commands'),
    /^no difference\nthe tables are those of this version\nthe store: \S+ has 2 records\nthe tables are those of this version\n2 servers: 0 differ in the store, 0 wait to be published, and 0 are only in the store\npublished 0 servers\nUsage: imds-api[^]*api_clients\/ID\/reset_secret/,
  ],
] as const

/** What the table above says of a line of JSON. */
function summaryOf(line: string): string {
  const value = JSON.parse(line) as Json | readonly Json[]
  if (Array.isArray(value)) return `${value.length} ${(value as Json[])[0]?.resource_type ?? ''}`
  const { resource_type: type, name, status, error_name: error, errors, token_type: token } = value as Json
  if (error !== undefined) return `${error} ${String(errors?.length)}`
  return [type ?? token, type === 'cloud_ip' ? status : name].filter((part) => part !== undefined).join(' ')
}

t.test('every example of api.md, accounts.md and region-file.md works, in their order', async (t) => {
  const directory = shortDirectory(t, 0o711)
  cpSync(`${ROOT}deploy/region.example.yaml`, join(directory, 'region.yaml'))
  mkdirSync(join(directory, 'store'))
  writeFileSync(join(directory, 'provisioning.secret'), 'it-is-a-secret-of-a-client\n')
  writeFileSync(join(directory, 'imds-api'), `#!/bin/sh\nexec ${process.execPath} ${IMDS_API} "$@"\n`, { mode: 0o755 })
  const [port, operatorPort] = [await freePort(), await freePort()]
  const environment = programEnvironment()
  const env = {
    ...environment,
    PATH: `${directory}:${environment['PATH']!}`,
    IMDS_STORE: `file:${directory}/store`,
    IMDS_API_DATABASE: await makeDatabase(t, 'tables'),
    IMDS_API_LISTEN: `127.0.0.1:${port}`,
    IMDS_API_OPERATOR_LISTEN: `127.0.0.1:${operatorPort}`,
  }
  const script = [
    'set -eu',
    "trap 'kill %1; wait %1' EXIT", // also where an example fails
    ...EXAMPLES.flatMap(([example]) => [example.replaceAll('127.0.0.1:8170', `127.0.0.1:${port}`), 'printf "\\f"']),
    `curl -s 127.0.0.1:${operatorPort}/metrics`,
  ].join('\n')
  const shell = spawn('bash', ['-c', script], { cwd: directory, env, stdio: ['ignore', 'pipe', 'inherit'] })
  const [chunks] = await Promise.all([shell.stdout.toArray(), once(shell, 'close')])
  const printed = Buffer.concat(chunks as Buffer[])
    .toString()
    .split('\f')
  t.equal(shell.exitCode, 0)
  for (const [i, [example, expected]] of EXAMPLES.entries()) {
    if (expected instanceof RegExp) t.match(printed[i], expected, example)
    else
      t.same(
        printed[i]!.split('\n')
          .filter((line) => line !== '')
          .map(summaryOf),
        expected,
        example,
      )
  }

  // The first scrape has every metric.
  const metrics = printed.at(-1)!
  const declared = buildApiMetrics({ database: {} } as ApiMetricsSources)
    .registry.getMetricsAsArray()
    .map(({ name }) => name)
    .filter((name) => name.startsWith('imds_'))
  t.ok(declared.length > 8)
  for (const name of declared) t.match(metrics, new RegExp(`^${name}[ {]`, 'm'), name)
})

/** A region whose hypervisors have the names of the documents. */
const COMPUTE_REGION = aRegion({
  hypervisors: aRegion().hypervisors.map((one) => ({ ...one, name: one.name.replace('-', '') })),
})

t.test('every example of docs/compute.md works, in their order', async (t) => {
  const directory = shortDirectory(t, 0o711)
  const api = await startImdsApi(
    t,
    {
      IMDS_API_COMPUTE: 'reported',
      IMDS_API_COMPUTE_LISTEN: `unix:${directory}/compute.sock`,
      IMDS_API_COMPUTE_RETRY_SECONDS: '1',
    },
    COMPUTE_REGION,
  )
  const call = async (method: Method, path: string, body?: object) =>
    (await api.call(method, path, body)).body as { id: string; status: string }
  const { id } = await call('POST', 'servers', { image: 'img-deb12', zone: 'gb1-a', user_data: 'YQ==' })
  const shell = async (...lines: string[]) =>
    String(
      await must([
        'bash',
        '-c',
        ['set -eu', `cd ${directory}`, `server=${id}`, executed('docs/compute.md', 'function'), ...lines].join('\n'),
      ]),
    )
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line) as unknown)

  const carryOut = join(directory, 'carry-out')
  writeFileSync(
    carryOut,
    '#!/bin/sh\njq -e \'.action != "stop"\' > /dev/null || { echo "the guest is busy" >&2; exit 1; }\n',
    { mode: 0o755 },
  )
  t.match(await shell(executed('docs/compute.md', 'agent')), [{ action: 'create', outcome: 'succeeded', fault: null }])
  await until(async () => (await call('GET', `servers/${id}`)).status === 'active', 'the server to be active')
  await call('POST', `servers/${id}/stop`)
  t.match(await shell(executed('docs/compute.md', 'agent')), [
    { action: 'stop', outcome: 'failed', fault: 'the guest is busy\n' },
  ])
  t.equal((await call('GET', `servers/${id}`)).status, 'active')
  t.match(await shell(executed('docs/compute.md', 'migration')), [
    { migrating_to: 'hv2' },
    { hypervisor: 'hv2', migrating_to: null },
    { id, hypervisor: 'hv2' },
  ])
  t.match(await shell(executed('docs/compute.md', 'seal')), [{ id, sealed_at: /Z$/ }])
})

const CLIENT = 'cli-3d0kz'
const SECRET_FILE = 'provisioning.secret'
const FIRST_SECRET = secretOf('provisioning')
const [SETTINGS = '', FUNCTIONS = '', ...CREATE] = executed('docs/api.md', 'recipe create').split('\n')
const RECIPES = {
  change: `${SETTINGS}\n${FUNCTIONS.replace('deploy/', `${ROOT}deploy/`)}`,
  create: CREATE.join('\n'),
  follow: executed('docs/api.md', 'recipe follow'),
  rotate: executed('docs/api.md', 'recipe rotate'),
}
const GRANT = { grant_type: 'client_credentials' }

/** Starts a proxy to an API that cuts the first response to each key. Returns its port. */
async function startCuttingProxy(t: Test, api: TestApi): Promise<number> {
  await api.server.listen({ host: '127.0.0.1', port: 0 })
  const { port } = api.server.server.address() as AddressInfo
  const keys = new Set<string>()
  const proxy = createServer((incoming, outgoing) => {
    const { method, url: path, headers } = incoming
    const key = headers['idempotency-key']
    incoming.pipe(
      send({ host: '127.0.0.1', port, method, path, headers }, (response) => {
        if (typeof key === 'string' && !keys.has(key)) {
          keys.add(key)
          incoming.socket.destroy()
          return
        }
        outgoing.writeHead(response.statusCode!, response.headers)
        response.pipe(outgoing)
      }),
    )
  })
  proxy.listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  t.teardown(() => {
    proxy.closeAllConnections()
    proxy.close()
  })
  return (proxy.address() as AddressInfo).port
}

t.test('the recipes work as written, while the first response to each change is lost', async (t) => {
  const [client] = aRegion().api_clients
  const region = aRegion({
    api_clients: [{ id: CLIENT, account: ONE, name: client!.name, secret_file: SECRET_FILE }],
  })
  const api = await anApi(t, { region })
  await api.startPublisher()
  const port = await startCuttingProxy(t, api)
  const directory = shortDirectory(t)
  writeFileSync(join(directory, SECRET_FILE), `${FIRST_SECRET}\n`)

  /** Runs the functions and a script in a shell; returns what it prints. */
  const run = async (...scripts: string[]) => {
    const child = spawn('bash', ['-euc', [RECIPES.change, `url=http://127.0.0.1:${port}`, ...scripts].join('\n')], {
      cwd: directory,
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    const [output, errors] = await Promise.all([child.stdout.toArray(), child.stderr.toArray(), once(child, 'close')])
    const text = (chunks: unknown[]) => Buffer.concat(chunks as Buffer[]).toString()
    return { status: child.exitCode, output: text(output), errors: text(errors) }
  }
  /** The names of the active servers. */
  const active = async () => {
    const rows = api.database.db.selectFrom('servers').select('name').where('status', '=', 'active').orderBy('name')
    return (await rows.execute()).map(({ name }) => name)
  }
  const secret = () => readFileSync(join(directory, SECRET_FILE), 'utf8').trim()
  const tokenWith = (given: string) =>
    api.server.inject({
      method: 'POST',
      url: '/token',
      headers: { authorization: basic(CLIENT, given) },
      payload: GRANT,
    })

  await t.test('a job that is started again creates no second server', async (t) => {
    const first = await run(RECIPES.create, 'echo $server')
    t.match(first, { status: 0, errors: '', output: /^srv-\w{5}\n$/ })
    t.same(await run(RECIPES.create, 'echo $server'), first)
    t.same(await active(), ['web'])
  })

  await t.test('each event is handled once and in order, also after a handler that was interrupted', async (t) => {
    const { status, output, errors } = await run(
      RECIPES.follow,
      'change watched/name PUT /server_groups/$group \'{"name": "other"}\' > /dev/null',
      'change watched/end DELETE /server_groups/$group > /dev/null',
      'interrupted=$(handle() { case $1 in *\\"delete\\"*) return 1 ;; *) echo handled ;; esac; }; follow || echo interrupted)',
      'echo $interrupted',
      'echo expired > token',
      'follow',
      'follow 1',
    )
    t.match({ status, errors }, { status: 0, errors: '' })
    t.match(
      output,
      /^Server group (grp-\w{5}) was created by \S+\nhandled interrupted\nServer group \1 was deleted by \S+\n/,
    )
  })

  await t.test('the recipe distinguishes three failures: try later, no access, events that are gone', async (t) => {
    const tell = async (...scripts: string[]) =>
      (await run('sleep() { :; }', ...scripts, 'follow && echo 0 || echo $?')).output
    t.equal(await tell(), '0\n')
    t.equal(await tell('url=http://127.0.0.1:1'), '75\n', 'the connection breaks')
    t.equal(await tell('echo expired > token', 'echo wrong > provisioning.secret'), '77\n', 'the secret is wrong')
    writeFileSync(join(directory, SECRET_FILE), `${FIRST_SECRET}\n`)
    t.equal(await tell('echo 00000000-1 > cursor'), '69\n', 'the cursor is too old')
    t.equal(await tell('echo nonsense > cursor'), '1\n')
    t.equal(await tell('begin'), '0\n')
  })

  await t.test('a secret is rotated once; one that is lost on the way leaves the present one valid', async (t) => {
    const lost = await run(RECIPES.rotate)
    t.not(lost.status, 0)
    t.equal(secret(), FIRST_SECRET)
    t.equal((await tokenWith(secret())).statusCode, 200)
    const again = RECIPES.rotate.replace('$(date +%F)', 'again')
    t.match(
      await run('echo expired > token', again),
      { status: 0, errors: '' },
      'and an expired access token is replaced',
    )
    t.not(secret(), FIRST_SECRET)
    t.equal((await tokenWith(secret())).statusCode, 200)
  })
})
