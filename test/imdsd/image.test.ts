/**
 * The images of the Dockerfile, built by the commands of docs/install.md and run by Buildah: the daemon answers a guest,
 * and imds-api a client and Redis. No registry can be reached: the base has files of this machine, laid out as in node:26-slim.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import t, { type Test } from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { CLIENT_OF, ONE, secretOf } from '../support/fixtures/region.ts'
import { makeHypervisor, withoutNamespaces } from '../support/netns/namespaces.ts'
import { writeRegion } from '../support/programs/api.ts'
import { type LogLine, until } from '../support/programs/daemon.ts'
import { prepareBuildah } from '../support/programs/buildah.ts'
import { buildInto } from '../support/programs/imds.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { must } from '../support/programs/processes.ts'
import { startRedis } from '../support/redis/redis.ts'
import { executed, ROOT } from '../tools/documents.ts'
import { without } from '../support/packages.ts'

const LINK = { address: '10.0.0.2/30', gateway: '10.0.0.1', macAddress: '02:24:19:00:00:ee' }
/** What a Node.js project is built with, and how an intruder would get more. */
const TOOLS = [
  'npm',
  'npx',
  'yarn',
  'corepack',
  'tsc',
  'rolldown',
  'cc',
  'gcc',
  'make',
  'git',
  'apt',
  'apt-get',
  'curl',
]

/** What of the configuration of an image a container engine obeys. */
interface ImageConfig {
  readonly User: string
  readonly Entrypoint: readonly string[]
  readonly StopSignal: NodeJS.Signals
  readonly Volumes?: Readonly<Record<string, object>>
}
interface Container {
  readonly log: readonly LogLine[]
  /** Sends a signal to the process that listens on a port, and returns the exit status of the container. */
  stop(port: number): Promise<number | null>
}

/** The images, and how to run them. */
async function startBuildah(t: Test) {
  const { directory, env, buildah } = await prepareBuildah(t)
  const clone = join(directory, 'clone')
  mkdirSync(join(clone, 'dist'), { recursive: true })
  for (const file of ['Dockerfile', '.dockerignore', 'package.json', 'LICENSE'])
    copyFileSync(join(ROOT, file), join(clone, file))
  buildInto(join(clone, 'dist'))
  writeFileSync(join(clone, 'local-secret'), '')
  const commands = executed('docs/install.md', 'images')
    .replace('npm ci && npm run build\n', '')
    .replaceAll('docker build', 'buildah build --pull-never --build-arg NODE_IMAGE=localhost/base')
  await must(['sh', '-euc', `cd ${clone}\n${commands}`], { env })

  const configOf = async (image: string) =>
    (JSON.parse(await buildah('inspect', '--type=image', image)) as { OCIv1: { config: ImageConfig } }).OCIv1.config
  /** Starts a container as an engine would with `--network host --cap-drop ALL`. */
  const start = async (
    image: string,
    environment: Readonly<Record<string, string>>,
    volumes: readonly string[],
    within: readonly string[] = [],
  ): Promise<Container> => {
    const { Entrypoint: entrypoint, StopSignal: signal } = await configOf(image)
    const options = [
      '--cap-drop=ALL',
      ...Object.entries(environment).map(([name, value]) => `--env=${name}=${value}`),
      ...volumes.map((volume) => `--volume=${volume}`),
    ]
    const command = [...within, 'buildah', 'run', ...options, await buildah('from', '--pull-never', image), '--']
    const child = spawn(command[0]!, [...command.slice(1), ...entrypoint], {
      env,
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    const ended = once(child, 'exit')
    const log: LogLine[] = []
    createInterface({ input: child.stdout }).on('line', (line) => log.push(JSON.parse(line) as LogLine))
    t.teardown(async () => {
      child.kill('SIGKILL')
      await ended
    })
    await until(() => log.some(({ msg }) => msg === 'listening') || child.exitCode !== null, `${image} to listen`)
    if (child.exitCode !== null) throw new Error(`${image} did not start: ${JSON.stringify(log)}`)
    return {
      log,
      stop: async (port) => {
        process.kill(await pidOf(port, within), signal)
        await until(() => child.exitCode !== null, 'the end of the container', 10_000) // Docker kills it after 10 s
        return child.exitCode
      },
    }
  }
  return { directory, buildah, configOf, start }
}

/** The process that listens on a TCP port. */
async function pidOf(port: number, within: readonly string[]): Promise<number> {
  const listening = (await must([...within, 'ss', '-Hltnp', `sport = :${port}`])).toString()
  return Number(/pid=(\d+)/.exec(listening)?.[1])
}

/** Checks who a process of an image runs as, and what it could use. */
function checkProcess(t: Test, pid: number, uid: number, files: readonly string[]): void {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  t.match(status, `\nUid:${`\t${uid}`.repeat(4)}\n`, 'the user is none of the host')
  for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapAmb']) t.match(status, `${set}:\t0000000000000000`)
  const root = `/proc/${pid}/root/`
  const programs = ['usr/local/bin', 'usr/bin', 'opt/imds/dist/bin'].flatMap((path) => readdirSync(root + path))
  t.ok(programs.includes('node'))
  t.same(
    programs.filter((name) => TOOLS.includes(name)),
    [],
  )
  t.same(readdirSync(`${root}usr/local/lib`), [], 'without npm')
  t.same(readdirSync(`${root}opt/imds`).sort(), ['LICENSE', 'dist', 'package.json'])
  t.same(readdirSync(`${root}opt/imds/dist/bin`).sort(), files)
}

t.test(
  'the images are built as documented, and run without root',
  { skip: without('buildah') || withoutNamespaces() },
  async (t) => {
    const { directory, buildah, configOf, start } = await startBuildah(t)

    await t.test('the image of the daemon answers a guest, has no build tools, and stops by SIGTERM', async (t) => {
      const hypervisor = await makeHypervisor()
      t.teardown(() => hypervisor.remove())
      const guest = await hypervisor.addGuest(LINK)
      await must([...hypervisor.within, 'sh', '-c', 'echo 80 > /proc/sys/net/ipv4/ip_unprivileged_port_start'])
      const store = join(directory, 'store')
      mkdirSync(store)
      writeFileSync(join(store, 'srv-abcde.json'), JSON.stringify(anInstance()))
      t.match(await configOf('localhost/imdsd'), {
        User: '61000:61000',
        Volumes: { '/var/lib/imds': {}, '/run/imds': {} },
      })
      const container = await start(
        'localhost/imdsd',
        { IMDS_STORE: 'file:/store' },
        [`${store}:/store:ro`],
        hypervisor.within,
      )
      const id = async () => (await guest.ask({ path: '/latest/meta-data/instance-id' })).body.toString()
      await until(async () => (await id()) === 'srv-abcde', 'the instance')
      checkProcess(t, await pidOf(80, hypervisor.within), 61000, ['imdsctl', 'imdsd'])
      const root = `/proc/${await pidOf(80, hypervisor.within)}/root`
      t.match(readdirSync(`${root}/var/lib/imds`).join(), 'token', 'the directory of the state is its own')
      t.ok(existsSync(`${root}/run/imds/operator.sock`), 'and that of the socket for operators')
      t.equal(await container.stop(80), 0)
      const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { version: string }
      const other = await buildah('from', '--pull-never', 'localhost/imdsd')
      t.equal(await buildah('run', other, '--', 'imdsctl', '--version'), version)
    })

    await t.test(
      'the image of imds-api answers a client, publishes into Redis, and stops by SIGTERM',
      { skip: without('postgres') },
      async (t) => {
        const postgres = await startPostgres(t)
        const redis = await startRedis(t)
        const region = join(directory, 'region')
        mkdirSync(region)
        writeRegion(region)
        await must(['chown', '-R', '61001', region])
        const environment = {
          IMDS_STORE: redis.url,
          IMDS_REGION: 'gb1',
          IMDS_API_DATABASE: postgres.url,
          IMDS_API_LISTEN: '127.0.0.1:0',
          IMDS_API_OPERATOR_LISTEN: '127.0.0.1:0',
        }
        t.match(await configOf('localhost/imds-api'), { User: '61001:61001' })
        const { Entrypoint: entrypoint } = await configOf('localhost/imds-api')
        const variables = Object.entries(environment).map(([name, value]) => `--env=${name}=${value}`)
        const other = await buildah('from', '--pull-never', 'localhost/imds-api')
        const apply = [...entrypoint, 'apply', '/region/region.yaml']
        t.match(await buildah('run', ...variables, `--volume=${region}:/region`, other, '--', ...apply), '+ zone ')
        const container = await start('localhost/imds-api', environment, [`${region}:/region`])
        const place = (container.log.find(({ msg }) => msg === 'listening')!['listening'] as [string])[0]
        const response = await fetch(`http://${place}/token`, {
          method: 'POST',
          headers: { authorization: `Basic ${btoa(`${CLIENT_OF[ONE]}:${secretOf(CLIENT_OF[ONE])}`)}` },
          body: new URLSearchParams({ grant_type: 'client_credentials' }),
        })
        const { access_token: token } = (await response.json()) as { access_token: string }
        const created = await fetch(`http://${place}/1.0/servers`, {
          method: 'POST',
          headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
          body: JSON.stringify({ image: 'img-deb12' }),
        })
        t.equal(created.status, 202)
        const { id } = (await created.json()) as { id: string }
        await until(async () => (await redis.client.exists(keysOf('gb1').instance(id))) === 1, 'the record in Redis')
        t.equal((await fetch(`http://${place}/docs/static/swagger-ui.css`)).status, 200)
        const port = Number(place.split(':')[1])
        checkProcess(t, await pidOf(port, []), 61001, ['imds-api'])
        t.equal(await container.stop(port), 0)
      },
    )
  },
)
