/** Programs whose installation is deleted or incomplete, and an older Node.js. */
import { spawnSync } from 'node:child_process'
import { existsSync, globSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { stringify } from 'yaml'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { curl, startFirewallHost } from '../support/netns/firewall-host.ts'
import { run } from '../support/programs/processes.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { makeIdentity } from '../support/fixtures/identity.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { buildInto, programEnvironment } from '../support/programs/imds.ts'
import { testDirectory } from '../support/test-directory.ts'

const ROOT = new URL('../../', import.meta.url).pathname
const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { version: string }
const ran = async (program: string, args: readonly string[], env: Record<string, string> = {}) => {
  const { status, stdout, stderr } = await run([process.execPath, program, ...args], {
    env: { ...programEnvironment(), ...env },
  })
  return { status, stdout: stdout.toString(), stderr }
}

const aBuild = (t: Test) => {
  const directory = testDirectory(t, { dist: {}, 'package.json': '{"type": "module"}' })
  const dist = join(directory, 'dist')
  buildInto(dist)
  return { directory, dist }
}

t.test('H4: a daemon whose installation is deleted answers all requests, tokens too, and stops cleanly', async (t) => {
  const { directory, dist } = aBuild(t)
  const store = await openStore({ url: `file:${directory}/store` })
  const put = (revision: number) =>
    store.put(
      anInstance({
        revision,
        fqdn: `r${revision}.example.com`,
        interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['127.0.0.1/8'] }],
      }),
    )
  await put(1)
  const { directory: keys, keyFile, certificateFile } = makeIdentity()
  t.teardown(() => rmSync(keys, { recursive: true }))
  const env = {
    IMDS_STORE: `file:${directory}/store`,
    IMDS_IDENTITY_KEY_FILE: keyFile,
    IMDS_IDENTITY_CERT_FILE: certificateFile,
    IMDS_IDENTITY_ISSUER: 'https://id.example.com',
  }
  const daemon = await startDaemon(t, env, [], { main: join(dist, 'main.js') })
  rmSync(dist, { recursive: true })
  await put(2)
  // before that, a guest may get 503, which is logged
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'the daemon to be ready')
  await until(
    async () => (await daemon.get('/latest/meta-data/hostname')).body.toString() === 'r2.example.com',
    'the change',
  )
  const leaves = [
    '/latest/dynamic/instance-identity/document',
    '/nocloud/meta-data',
    '/openstack/latest/meta_data.json',
    '/latest/user-data',
  ]
  for (const path of leaves) t.not((await daemon.get(path)).status, 503, path)
  const latest = `http://127.0.0.1:${daemon.guestPort}/latest`
  const ttl = { 'X-aws-ec2-metadata-token-ttl-seconds': '60' }
  const session = await fetch(`${latest}/api/token`, { method: 'PUT', headers: ttl })
  const headers = { 'X-aws-ec2-metadata-token': await session.text() }
  t.equal((await fetch(`${latest}/dynamic/instance-identity/token?audience=vault`, { headers })).status, 200)
  const interfaces = [{ id: 'int-y', macAddress: '02:24:19:00:00:ef', ipv4Addresses: ['127.0.0.9/8'] }]
  writeFileSync(`${directory}/store/srv-yamla.yaml`, stringify(anInstance({ id: 'srv-yamla', interfaces })))
  await until(async () => (await daemon.operator('/instances/srv-yamla')).status === 200, 'the first record in YAML')
  for (const path of [
    '/',
    '/?instance=srv-abcde',
    '/metrics',
    '/livez',
    '/readyz',
    '/explain?address=127.0.0.1',
    '/instances/srv-abcde',
    '/instances/srv-abcde/reports',
    '/firewall',
  ])
    t.equal((await daemon.operator(path)).status, 200, path)
  const metrics = (await daemon.operator('/metrics')).body.toString()
  t.ok(metrics.includes(`\nimds_build_info{version="${version}",node="${process.versions.node}"} 1\n`))
  t.equal(await daemon.stop(), 0)
  t.same(
    daemon.log.filter(({ level, code }) => level !== 'info' && code !== 'identity-expires'), // its certificate is short-lived
    [],
  )
})

t.test(
  'imdsctl firewall --watch keeps running when its installation is deleted',
  { skip: withoutNamespaces() },
  async (t) => {
    const { dist } = aBuild(t)
    const host = await startFirewallHost(t)
    const alpha = await host.addGuest('alpha')
    const firewall = await host.startFirewall({}, join(dist, 'imdsctl.js'))
    rmSync(dist, { recursive: true })
    await host.putAndWait(alpha)
    t.equal(await curl(alpha), 200)
    await host.nft('flush ruleset')
    await until(
      () => firewall.output().endsWith('another program changed the rules; they are restored (firewall-restored)\n'),
      'the rules to be restored',
    )
    t.equal(await curl(alpha), 200)
    await firewall.stop()
    t.equal(firewall.process.exitCode, 0)
  },
)

/** A Node.js of this machine that is too old, as Debian's is. */
const OLD_NODE = ['/usr/bin/node', '/usr/local/bin/node'].find(
  (path) =>
    existsSync(path) && Number.parseInt(spawnSync(path, ['-p', 'process.versions.node']).stdout.toString(), 10) < 26,
)

t.test('a program says if Node.js is too old', { skip: OLD_NODE === undefined && 'there is none here' }, async (t) => {
  const { directory, dist } = aBuild(t)
  for (const [program, command] of Object.entries({ main: 'imdsd', imdsctl: 'imdsctl', api: 'imds-api' }))
    t.match(
      await run([OLD_NODE!, join(dist, `${program}.js`)], {
        env: { IMDS_STORE: `file:${directory}`, IMDS_LISTEN: '127.0.0.1:0', IMDS_OPERATOR_LISTEN: '127.0.0.1:0' },
      }),
      {
        status: 70,
        stderr: new RegExp(`^${command}: this is Node\\.js \\d+\\.\\d+\\.\\d+, and imds needs 26 or newer\\n$`),
      },
    )
})

t.test('a program with a missing file names it in one line without a stack trace; imdsctl exits with 70', async (t) => {
  const { directory, dist } = aBuild(t)
  const list = () => ran(join(dist, 'imdsctl.js'), ['--store', 'redis://127.0.0.1:1', '--region', 'gb1', 'list'])
  t.match(
    await list(),
    { status: 69, stderr: /^imdsctl: cannot use the store: .*ECONNREFUSED/ },
    'with all files it tries to connect',
  )
  const chunks = globSync('imdsctl/*-*.js', { cwd: dist })
  t.ok(chunks.length > 3)
  const listWithout = async (name: string) => {
    renameSync(join(dist, name), join(directory, 'moved'))
    const { status, stderr } = await list()
    renameSync(join(directory, 'moved'), join(dist, name))
    return { status, stderr }
  }
  const commands = chunks.filter((chunk) => chunk.includes('commands'))
  const publishers = chunks.filter((chunk) =>
    readFileSync(join(dist, chunk), 'utf8').includes('async function openRedisPublisher('),
  )
  t.same([commands.length, publishers.length], [1, 1])
  for (const name of [...commands, ...publishers]) {
    const { status, stderr } = await listWithout(name)
    t.equal(status, 70, name)
    t.match(
      stderr,
      /^imdsctl: cannot load .*, a file of this installation: if imds was just upgraded, run the command again; .*\n$/,
    )
    t.ok(stderr.includes(join(dist, name)), name)
  }
  rmSync(
    join(
      dist,
      chunks.find((chunk) => chunk.includes('agent'))!,
    ),
  )
  t.match(await ran(join(dist, 'imdsctl.js'), ['firewall']), { status: 70, stderr: /^imdsctl: cannot load .*\n$/ })

  rmSync(join(dist, globSync('main/background-*.js', { cwd: dist })[0]!))
  const { status, stdout } = await ran(join(dist, 'main.js'), [], {
    IMDS_STORE: `file:${directory}`,
    IMDS_STATE_DIR: directory,
    IMDS_LISTEN: '127.0.0.1:0',
    IMDS_OPERATOR_LISTEN: '127.0.0.1:0',
    IMDS_OPERATOR_SOCKET: `/tmp/imds-programs-${process.pid}.sock`,
  })
  t.equal(status, 1)
  t.match(JSON.parse(stdout.trim().split('\n').at(-1)!), {
    level: 'fatal',
    msg: 'could not start',
    reason: /^cannot load .*background-.*: if imds was just upgraded, start it again; otherwise install it again$/,
    err: undefined,
  })
})
