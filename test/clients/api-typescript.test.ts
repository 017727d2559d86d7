/**
 * TypeScript clients that generators make of the OpenAPI document compile strictly. With the one that docs/api.md makes, the
 * examples of docs/api.md get the same with it: a server between curl and imds-api calls the client's function for each
 * request.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { json } from 'node:stream/consumers'
import t from 'tap'
import { parse } from 'yaml'
import type { RegionFile } from '../../src/imds-api/region/schema.ts'
import { secretTextOf } from '../support/fixtures/region.ts'
import { installTools } from '../support/tools.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { programEnvironment } from '../support/programs/imds.ts'
import { testDirectory } from '../support/test-directory.ts'
import { executed, read, ROOT } from '../tools/documents.ts'

const directory = testDirectory(t, {
  'package.json': '{ "type": "module" }',
  'tsconfig.json': JSON.stringify({
    compilerOptions: {
      strict: true,
      skipLibCheck: true,
      noUncheckedIndexedAccess: true,
      module: 'nodenext',
      target: 'esnext',
      lib: ['esnext', 'dom', 'dom.iterable'],
      types: ['node'],
      rootDir: '.',
      outDir: 'out',
    },
  }),
  'provisioning.secret': secretTextOf('provisioning.secret'),
})
const imdsApi = await startImdsApi(t, {}, parse(read('deploy/region.example.yaml')) as RegionFile)
const { host } = new URL(imdsApi.baseUrl)
const TOOLS = installTools('api')
const PATH = `${ROOT}node_modules/.bin:${TOOLS}node_modules/.bin:${process.env['PATH']!}`

/** Runs a script of bash, and returns what it prints. */
async function run(script: string): Promise<{ readonly status: number | null; readonly output: string }> {
  const env = { ...programEnvironment(), PATH, HOME: directory }
  const shell = spawn('bash', ['-euc', script], { cwd: directory, env, stdio: ['ignore', 'pipe', 'inherit'] })
  const [chunks] = await Promise.all([shell.stdout.toArray(), once(shell, 'close')])
  return { status: shell.exitCode, output: Buffer.concat(chunks as Buffer[]).toString() }
}

/** A function of the client. */
type Call = (options: object) => Promise<{
  readonly data?: unknown
  readonly error?: unknown
  readonly response: Response
}>

t.test('the generated client compiles strictly, and the example of the guide works with it', async (t) => {
  const generate = executed('docs/api.md', 'generate-client').replace('127.0.0.1:8170', host)
  const generated = await run(`npx() { shift; openapi-ts "$@"; }\n${generate}`)
  t.equal(generated.status, 0, generated.output)
  const use = executed('docs/api.md', 'use-client').replace('127.0.0.1:8170', host)
  writeFileSync(join(directory, 'use.ts'), use)
  // a wrong name of a field, of a status, and of an operation
  writeFileSync(
    join(directory, 'wrong.ts'),
    `import { createServer, getServer } from './client/index.js'
// @ts-expect-error -- there is no such field
void createServer({ body: { image: 'debian-12', colour: 'red' } })
const { data } = await getServer({ path: { id: 'srv-6ilgo' } })
// @ts-expect-error -- there is no such status
export const isRunning = data?.status === 'running'
// @ts-expect-error -- there is no such operation
export { createVolume } from './client/index.js'
`,
  )
  const compiled = await run('tsc -p .')
  t.equal(compiled.status, 0, compiled.output)
  const { status, output } = await run(`${process.execPath} out/use.js`)
  t.equal(status, 0)
  t.match(output, /^srv-\w+ typed (creating|active)\n$/)
})

t.test('clients of openapi-typescript and of orval compile strictly, and no property is missing', async (t) => {
  const others = join(directory, 'others')
  mkdirSync(others)
  symlinkSync(`${TOOLS}node_modules`, join(others, 'node_modules'))
  writeFileSync(join(others, 'package.json'), '{ "type": "module" }')
  writeFileSync(
    join(others, 'tsconfig.json'),
    JSON.stringify({
      compilerOptions: {
        ...{ strict: true, skipLibCheck: true, noUncheckedIndexedAccess: true, noEmit: true, types: [] },
        ...{ module: 'esnext', moduleResolution: 'bundler', target: 'esnext', lib: ['esnext', 'dom', 'dom.iterable'] },
      },
      include: ['*.ts'],
    }),
  )
  const made = await run(`cd others
curl -fs http://${host}/1.0/openapi.json -o openapi.json
openapi-typescript openapi.json -o schema.ts 2>&1
orval --input openapi.json --output orval.ts --client fetch 2>&1`)
  t.equal(made.status, 0, made.output)
  writeFileSync(
    join(others, 'use.ts'),
    `import createClient from 'openapi-fetch'
import { listServers } from './orval'
import type { paths } from './schema'
const client = createClient<paths>({ baseUrl: 'http://${host}' })
const { data: servers } = await client.GET('/1.0/servers', { params: { query: { tags: { Role: 'front' } } } })
export const names: (string | undefined)[] | undefined = servers?.map(({ name }) => name)
const { data: group } = await client.GET('/1.0/server_groups/{id}', { params: { path: { id: 'grp-6ilgo' } } })
export const policy: { id: string } | null | undefined = group?.firewall_policy
const { data: image } = await client.GET('/1.0/images/{id}', { params: { path: { id: 'debian-12' } } })
export const ancestor: string | undefined = image?.ancestor?.name
// @ts-expect-error -- there is no such field
export const colour: unknown = image?.colour
export const all: string[] | undefined = servers?.map(({ name }) => name)
export const orvals = await listServers({ tags: { Role: 'front' } })
`,
  )
  const compiled = await run('cd others; tsc -p .')
  t.equal(compiled.status, 0, compiled.output)
})

t.test('the examples of the guide get the same with the generated client', async (t) => {
  const load = (file: string) => import(join(directory, 'out/client', file)) as Promise<Record<string, unknown>>
  const functions = (await load('sdk.gen.js')) as Record<string, Call>
  const { client } = (await load('client.gen.js')) as { client: { setConfig(settings: object): void } }
  client.setConfig({ baseUrl: imdsApi.baseUrl })
  const credentials = `cli-3d0kz:${secretTextOf('provisioning.secret')}`
  const { data: token } = await functions['createToken']!({
    auth: credentials,
    body: { grant_type: 'client_credentials' },
  })
  client.setConfig({ auth: (token as { access_token: string }).access_token })
  const { paths } = (await (await fetch(`${imdsApi.baseUrl}/1.0/openapi.json`)).json()) as {
    paths: Record<string, Record<string, { operationId: string }>>
  }
  const operations = Object.entries(paths).map(([path, methods]) => ({
    pattern: new RegExp(`^${path.replaceAll(/\{(\w+)\}/g, '(?<$1>[^/]+)')}$`),
    methods,
  }))
  const called = new Set<string>()
  const call = async (request: IncomingMessage) => {
    const { pathname, searchParams } = new URL(request.url!, 'http://localhost')
    const { pattern, methods } = operations.find((one) => one.pattern.test(pathname))!
    const { operationId } = methods[request.method!.toLowerCase()]!
    called.add(operationId)
    const hasBody = Number(request.headers['content-length'] ?? 0) > 0
    return functions[operationId]!({
      path: { ...pattern.exec(pathname)!.groups },
      query: Object.fromEntries(searchParams),
      ...(hasBody && { body: await json(request) }),
    })
  }
  const between = createServer((request, answer) => {
    void call(request).then(({ data, error, response }) => {
      answer.writeHead(response.status, { 'content-type': 'application/json' }).end(JSON.stringify(data ?? error))
    })
  }).listen(0, '127.0.0.1')
  t.teardown(() => between.close())
  await once(between, 'listening')
  const address = `127.0.0.1:${(between.address() as AddressInfo).port}`

  const refused = executed('docs/api.md', 'errors')
  const examples = [
    executed('docs/api.md', 'servers'),
    executed('docs/api.md', 'metadata-options'),
    executed('docs/api.md', 'actions'),
    executed('docs/api.md', 'cloud-ips'),
    executed('docs/api.md', 'server-groups'),
    executed('docs/api.md', 'config-maps'),
    executed('docs/api.md', 'database-servers'),
    executed('docs/api.md', 'images'),
    executed('docs/api.md', 'catalog'),
  ]
  const { status, output } = await run(
    [
      'token=of-the-client',
      executed('docs/api.md', 'function').replace('127.0.0.1:8170', address),
      refused,
      'printf "\\f"',
      `server=$(api POST /servers '{"image": "debian-12", "name": "web"}' | jq -r .id)`,
      `until [ $(api GET /servers/$server | jq -r .status) = active ]; do sleep 0.1; done`,
      ...examples,
    ].join('\n'),
  )
  t.equal(status, 0)
  const [errors, answers] = output.split('\f').map((part) =>
    part
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line) as { error_name?: string }),
  )
  t.strictSame(
    errors!.map(({ error_name }) => error_name),
    ['unprocessable_entity', 'unprocessable_entity', 'resource_not_found'],
  )
  t.strictSame(
    answers!.filter(({ error_name }) => error_name !== undefined),
    [],
  )
  t.ok(answers!.length > 35 && called.size > 30, `${answers!.length} ${called.size}`)
})
