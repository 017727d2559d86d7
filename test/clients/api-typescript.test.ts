/**
 * A TypeScript client that a generator makes of the OpenAPI document, as docs/api.md says. It compiles strictly, and the
 * examples of docs/api.md get the same with it: a server between curl and imds-api calls the client's function for each
 * request.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { json } from 'node:stream/consumers'
import t from 'tap'
import { parse } from 'yaml'
import type { RegionFile } from '../../src/imds-api/region/schema.ts'
import { secretTextOf } from '../support/fixtures/region.ts'
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
const PATH = `${ROOT}node_modules/.bin:${process.env['PATH']!}`

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
  const address = `127.0.0.1:${String((between.address() as AddressInfo).port)}`

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
  t.ok(answers!.length > 35 && called.size > 30, `${String(answers!.length)} ${String(called.size)}`)
})
