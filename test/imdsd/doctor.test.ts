/**
 * `imdsctl doctor` and `imdsctl status` on a hypervisor with a daemon, a guest and Redis, and with each thing broken in
 * turn.
 */
import { chmodSync, cpSync, readFileSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { openStore } from '../../src/store/open.ts'
import { formatFinding, type CheckResult } from '../../src/runtime/check.ts'
import type { Readiness } from '../../src/imdsd/operator/documents.ts'
import { CHECKS } from '../../src/imdsctl/doctor/checks.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { KEY_KINDS, makeIdentity } from '../support/fixtures/identity.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { must, run } from '../support/programs/processes.ts'
import { makeHypervisor, SERVICE, withoutNamespaces } from '../support/netns/namespaces.ts'
import { startFaultyRedis } from '../support/redis/namespaced-redis.ts'
import { USERS } from '../support/redis/shapes.ts'
import { shortDirectory, testDirectory } from '../support/test-directory.ts'

const ROOT = new URL('../../', import.meta.url).pathname
const GUEST = {
  address: '10.88.1.2/30',
  gateway: '10.88.1.1',
  macAddress: '02:24:19:00:01:01',
  device: 'tap-int-alpha',
}

/** What `imdsctl doctor --json` prints. */
interface Report {
  readonly ok: number
  readonly warnings: number
  readonly failures: number
  readonly checks: readonly CheckResult[]
}

async function startHost(t: Test) {
  const hypervisor = await makeHypervisor()
  t.teardown(() => hypervisor.remove())
  const redis = await startFaultyRedis(hypervisor)
  t.teardown(() => redis.stop())
  await hypervisor.addGuest(GUEST)
  const addUsers = async () => {
    for (const line of USERS.trim().replaceAll('>secret', '>a-secret').split('\n'))
      await redis.client.call('ACL', 'SETUSER', ...line.split(' ').slice(1))
  }
  await addUsers()
  const publish = async () => {
    const store = await openStore({ url: redis.publisherUrl, region: 'gb1' })
    const interfaces = [{ id: 'int-alpha', macAddress: GUEST.macAddress, ipv4Addresses: [GUEST.address] }]
    await store.put(anInstance({ id: 'srv-alpha', interfaces }))
    await store.close()
  }
  await publish()
  const directory = testDirectory(t, { password: 'a-secret\n', state: {} })
  chmodSync(join(directory, 'password'), 0o600)
  chmodSync(join(directory, 'state'), 0o700)
  mkdirSync(join(directory, 'identity'))
  const identity = makeIdentity(KEY_KINDS.rsa, join(directory, 'identity'))
  const env = {
    IMDS_IDENTITY_KEY_FILE: identity.keyFile,
    IMDS_IDENTITY_CERT_FILE: identity.certificateFile,
    IMDS_STORE: redis.url.replace('//', '//imds-hv1@'),
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_REDIS_PASSWORD_FILE: join(directory, 'password'),
    IMDS_STATE_DIR: join(directory, 'state'),
    IMDS_LISTEN: `${SERVICE}:80`,
    IMDS_OPERATOR_LISTEN: '127.0.0.1:9169',
    IMDS_LINK: 'tap-{interfaceId}',
    IMDS_RESYNC_SECONDS: '1',
  }
  const daemon = await startDaemon(t, env, hypervisor.within)
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'the daemon to be ready')
  const daemonEnv = () => ({ ...env, IMDS_OPERATOR_SOCKET: daemon.operatorSocket.replace('unix:', '') })
  const inHost = (command: readonly string[]) =>
    run([...hypervisor.within, ...command], { env: { ...programEnvironment(), ...daemonEnv() } })
  const imdsctl = (args: readonly string[], { program = IMDSCTL, prefix = [] as readonly string[] } = {}) =>
    inHost([...prefix, process.execPath, program, ...args])
  const doctor = async (options: Parameters<typeof imdsctl>[1] = {}) => {
    const { status, stdout, stderr } = await imdsctl(['--json', 'doctor'], options)
    if (stderr !== '') throw new Error(stderr)
    const report = JSON.parse(stdout.toString()) as Report
    const found = report.checks.filter(({ severity }) => severity !== 'ok')
    return { status, report, found: found.map((one) => `${one.severity} ${one.code}: ${formatFinding(one)}`) }
  }
  const ip = (words: string) => must([...hypervisor.within, 'ip', ...words.split(' ')])
  return { hypervisor, redis, addUsers, publish, daemon, daemonEnv, directory, inHost, imdsctl, doctor, ip }
}

t.test(
  'doctor finds nothing wrong with a sound hypervisor, and names each thing that is broken',
  { skip: withoutNamespaces() },
  async (t) => {
    const { redis, addUsers, publish, daemon, daemonEnv, directory, inHost, imdsctl, doctor, ip } = await startHost(t)
    const state = join(directory, 'state')
    await until(async () => (await doctor()).status === 0, 'the hypervisor to be sound')
    const sound = await doctor()
    t.same(sound.found, [])
    t.same(sound.status, 0)
    const names = new Set(sound.report.checks.map(({ code }) => code))
    t.same(
      CHECKS.map(({ code }) => code).filter((name) => !names.has(name) && name !== 'clock'),
      [],
      'every check found something to look at; the clock needs a systemd',
    )

    const wrong = ['IMDS_STORE=file:/nowhere', 'IMDS_OPERATOR_SOCKET=/nowhere.sock']
    const file = join(directory, 'imds.env')
    writeFileSync(
      file,
      Object.entries(daemonEnv())
        .map((pair) => `${pair.join('=')}\n`)
        .join(''),
    )
    const inShell = async (...args: string[]) => {
      const command = ['env', ...wrong, process.execPath, IMDSCTL, '--environment-file', file, 'doctor', ...args]
      return (await inHost(command)).stdout.toString()
    }
    const service = await inShell()
    t.match(service, / 0 warnings, 0 failures\n$/, 'root looks at the service, whatever its shell has')
    t.match(
      await inShell('--no-service'),
      /^warning +configuration +variables of this shell replace those of imds\.service: IMDS_STORE, IMDS_OPERATOR_SOCKET\. /,
    )

    const status = await imdsctl(['status'])
    t.equal(status.status, 0, status.stderr)
    t.match(
      status.stdout.toString(),
      /^imdsd +\S+, ready\nstore +redis:.* connected, compared .*\ninstances +1; .*\nfirewall +off\n\d+ ok, 0 warnings, 0 failures\n$/,
    )

    const onTerminal = async (variable: string) => {
      const command = `stty cols 70; env ${variable} TERM=xterm ${process.execPath} ${IMDSCTL} doctor`
      const { stdout } = await inHost(['script', '-qec', command, '/dev/null'])
      return stdout.toString().trimEnd().split('\r\n')
    }
    const [plain, styled] = [await onTerminal('NO_COLOR=1'), await onTerminal('-u NO_COLOR')]
    t.match(plain[0], /^ok {2,}configuration {2,}/)
    t.ok(plain.length > sound.report.checks.length + 1, 'long lines are wrapped')
    t.same(
      plain.filter((line) => line.length > 70 && line.slice(30).includes(' ')),
      [],
      'the lines fit the width, except for a long word',
    )
    t.notOk(plain.join('').includes('\u001b'), 'no colours with NO_COLOR')
    t.equal(styled[0]!.replace(/\S+$/, ''), plain[0]!.replace('ok', '\u001b[32mok\u001b[39m').replace(/\S+$/, ''))
    t.equal(styled.length, plain.length, 'colours do not change the layout')

    const codesNow = async () => {
      const { conditions } = JSON.parse((await daemon.operator('/readyz')).body.toString()) as Readiness
      return conditions.map(({ code }) => code)
    }
    /** Breaks several things, checks that doctor names each, and repairs them. */
    const broken = async (faults: readonly { readonly found: RegExp; breakIt(): unknown; repair(): unknown }[]) => {
      for (const { breakIt } of faults) await breakIt()
      let last: Awaited<ReturnType<typeof doctor>> | undefined
      const isFound = async () => {
        last = await doctor()
        return last.status === 2 && faults.every(({ found }) => last!.found.some((text) => found.test(text)))
      }
      await until(isFound, 'doctor to find what is broken').catch((error: unknown) => {
        throw new Error(last?.found.join('\n'), { cause: error })
      })
      for (const { found } of faults) t.pass(found.source)
      for (const { repair } of faults) await repair()
      await until(async () => (await codesNow()).length === 0, 'the conditions to end', 30_000)
    }
    const mode = (path: string, wrong: number, right: number) => ({
      breakIt: () => chmodSync(path, wrong),
      repair: () => chmodSync(path, right),
    })

    await broken([
      {
        found:
          /^failure address-missing: no guest can reach imds at 169\.254\.169\.254, .*\. Remedy: systemctl restart imds-address/,
        breakIt: () => ip(`address delete ${SERVICE}/32 dev lo`),
        repair: () => ip(`address add ${SERVICE}/32 dev lo`),
      },
      {
        found: /^warning store: Redis removes records .* is allkeys-lru\. Remedy: set maxmemory-policy to noeviction/,
        breakIt: () => redis.client.config('SET', 'maxmemory-policy', 'allkeys-lru'),
        repair: () => redis.client.config('SET', 'maxmemory-policy', 'noeviction'),
      },
      {
        found: /^warning key-files: .*password has mode 0644: every user can read it\. Remedy: chmod o= /,
        ...mode(join(directory, 'password'), 0o644, 0o600),
      },
      {
        found:
          /^warning guests: srv-alpha: 10\.88\.1\.2 has the MAC address 02:00:00:00:00:99, and its record has 02:24:19:00:01:01/,
        breakIt: () => ip('neighbour replace 10.88.1.2 lladdr 02:00:00:00:00:99 dev tap-int-alpha'),
        repair: () => ip('neighbour delete 10.88.1.2 dev tap-int-alpha'),
      },
    ])
    const good = join(directory, 'identity')
    cpSync(good, `${good}-good`, { recursive: true })
    await broken([
      {
        found: /^failure configuration: IMDS_IDENTITY_CERT_FILE names a file that does not begin with a certificate/,
        breakIt: () => writeFileSync(join(good, 'certificate.pem'), 'x'),
        repair: () => cpSync(`${good}-good`, good, { recursive: true }),
      },
    ])
    await broken([
      {
        found: /^failure store: the Redis user may not do this \(NOPERM .*Remedy: give it \+zrevrangebylex/,
        breakIt: () => redis.client.call('ACL', 'SETUSER', 'imds-hv1', '-zrevrangebylex'),
        repair: () => redis.client.call('ACL', 'SETUSER', 'imds-hv1', '+zrevrangebylex'),
      },
      {
        found: /^warning state-directory: .*state has mode 0755: other users can enter it/,
        breakIt: () => chmodSync(state, 0o755),
        repair: () => chmodSync(state, 0o700),
      },
      {
        found:
          /^failure guests: srv-alpha: packets to 10\.88\.1\.2 leave by guest1 to the gateway 10\.77\.0\.2, not by tap-int-alpha/,
        breakIt: () => ip('route add 10.88.1.2/32 via 10.77.0.2'),
        repair: () => ip('route delete 10.88.1.2/32 via 10.77.0.2'),
      },
    ])
    await broken([
      {
        found: /^failure store-lost: redis:.* was lost .*ECONNREFUSED.*; 1 instances are served from memory\. Remedy: /,
        breakIt: () => redis.client.save().then(() => redis.kill()),
        repair: () => redis.start().then(addUsers),
      },
      {
        found: /^failure guests: srv-alpha: link tap-int-alpha is down/,
        breakIt: () => ip('link set tap-int-alpha down'),
        repair: () => ip('link set tap-int-alpha name tap-other'), // a machine that is stopped has no link
      },
    ])
    await ip('link set tap-other name tap-int-alpha')
    await ip('link set tap-int-alpha up')
    await broken([
      {
        found:
          /^failure store-empty: redis:.* has nothing of this region; 1 instances are served from memory\. Remedy: /,
        breakIt: () => redis.client.flushall(),
        repair: publish,
      },
    ])
    await until(async () => (await doctor()).status === 0, 'the hypervisor to be sound again')

    const mounted = 'mount -t tmpfs -o ro,mode=700 tmpfs "$0" && exec "$@"'
    const readOnly = await doctor({ prefix: ['unshare', '--mount', 'sh', '-c', mounted, state] })
    t.equal(readOnly.status, 2)
    t.ok(
      readOnly.found.some((text) => /^failure configuration: IMDS_STATE_DIR .* cannot write .*EROFS/.test(text)),
      readOnly.found.join('\n'),
    )

    const copy = shortDirectory(t)
    cpSync(join(ROOT, 'src'), join(copy, 'src'), { recursive: true })
    symlinkSync(join(ROOT, 'node_modules'), join(copy, 'node_modules'))
    const manifest = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as Record<string, unknown>
    writeFileSync(join(copy, 'package.json'), JSON.stringify({ ...manifest, version: '99.0.0' }))
    const newer = await doctor({ program: join(copy, 'src/imdsctl/main.ts') })
    t.match(newer, {
      status: 1,
      found: [/^warning version: imdsd is .*, and imdsctl is 99\.0\.0\. Remedy: systemctl restart imds$/],
    })

    daemon.process.kill('SIGKILL')
    await until(() => daemon.process.signalCode !== null, 'the end of the daemon')
    const dead = await doctor()
    t.equal(dead.status, 2)
    const expected = /^failure daemon: .*ECONNREFUSED: the daemon that made the socket has ended/
    t.ok(
      dead.found.some((text) => expected.test(text)),
      dead.found.join('\n'),
    )
  },
)
