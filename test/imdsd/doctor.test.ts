/**
 * `imdsctl doctor` and `imdsctl status` on a sound hypervisor with a daemon, a guest and Redis, and what only the kernel
 * and files show. conditions.test.ts has the conditions, test/unit/imdsctl/doctor/ has each check.
 */
import { chmodSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { formatFinding, type CheckResult } from '../../src/runtime/check.ts'
import { CHECKS } from '../../src/imdsctl/doctor/checks.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { KEY_KINDS, makeIdentity } from '../support/fixtures/identity.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { must, run } from '../support/programs/processes.ts'
import { makeHypervisor, SERVICE, withoutNamespaces } from '../support/netns/namespaces.ts'
import { startFaultyRedis } from '../support/redis/namespaced-redis.ts'
import { USERS } from '../support/redis/shapes.ts'
import { testDirectory } from '../support/test-directory.ts'

const GUEST = {
  address: '10.88.1.2/30',
  gateway: '10.88.1.1',
  macAddress: '02:24:19:00:01:01',
  device: 'tap-int-alpha',
}

t.test(
  'doctor finds nothing wrong with a sound hypervisor, and names what is broken',
  { skip: withoutNamespaces() },
  async (t) => {
    const hypervisor = await makeHypervisor()
    t.teardown(() => hypervisor.remove())
    const redis = await startFaultyRedis(hypervisor)
    t.teardown(() => redis.stop())
    await hypervisor.addGuest(GUEST)
    for (const line of USERS.trim().replaceAll('>secret', '>a-secret').split('\n'))
      await redis.client.call('ACL', 'SETUSER', ...line.split(' ').slice(1))
    const store = await openStore({ url: redis.publisherUrl, region: 'gb1' })
    const interfaces = [{ id: 'int-alpha', macAddress: GUEST.macAddress, ipv4Addresses: [GUEST.address] }]
    await store.put(anInstance({ id: 'srv-alpha', interfaces }))
    await store.close()
    const directory = testDirectory(t, { password: 'a-secret\n', state: {} })
    const password = join(directory, 'password')
    chmodSync(password, 0o600)
    chmodSync(join(directory, 'state'), 0o700)
    mkdirSync(join(directory, 'identity'))
    const identity = makeIdentity(KEY_KINDS.rsa, join(directory, 'identity'))
    const env = {
      IMDS_IDENTITY_KEY_FILE: identity.keyFile,
      IMDS_IDENTITY_CERT_FILE: identity.certificateFile,
      IMDS_STORE: redis.url.replace('//', '//imds-hv1@'),
      IMDS_REGION: 'gb1',
      IMDS_HYPERVISOR: 'hv1',
      IMDS_REDIS_PASSWORD_FILE: password,
      IMDS_STATE_DIR: join(directory, 'state'),
      IMDS_LISTEN: `${SERVICE}:80`,
      IMDS_OPERATOR_LISTEN: '127.0.0.1:9169',
      IMDS_LINK: 'tap-{interfaceId}',
      IMDS_RESYNC_SECONDS: '1',
    }
    const daemon = await startDaemon(t, env, hypervisor.within)
    const imdsctl = async (...args: string[]) => {
      const { status, stdout } = await run([...hypervisor.within, process.execPath, IMDSCTL, ...args], {
        env: { ...programEnvironment(), ...env, IMDS_OPERATOR_SOCKET: daemon.operatorSocket.replace('unix:', '') },
      })
      return { status, text: stdout.toString() }
    }
    const doctor = async () => {
      const { status, text } = await imdsctl('--json', 'doctor')
      const { checks } = JSON.parse(text) as { readonly checks: readonly CheckResult[] }
      const wrong = checks.filter(({ severity }) => severity !== 'ok')
      return { status, checks, found: wrong.map((one) => `${one.severity} ${one.code}: ${formatFinding(one)}`) }
    }
    const ip = (words: string) => must([...hypervisor.within, 'ip', ...words.split(' ')])

    await until(async () => (await doctor()).status === 0, 'the hypervisor to be sound')
    const sound = await doctor()
    t.same(sound.found, [])
    const names = new Set(sound.checks.map(({ code }) => code))
    t.same(
      CHECKS.map(({ code }) => code).filter((name) => !names.has(name) && name !== 'clock'),
      [],
      'every check found something to look at; the clock needs a systemd',
    )
    t.match(await imdsctl('status'), {
      status: 0,
      text: /^imdsd +\S+, ready\nstore +redis:.* connected, compared .*\ninstances +1; .*\nfirewall +off\n\d+ ok, 0 warnings, 0 failures\n$/,
    })

    const setPolicy = (policy: string) => redis.client.config('SET', 'maxmemory-policy', policy)
    for (const [status, found, breakIt, repair] of [
      [
        1,
        /^warning guests: srv-alpha: 10\.88\.1\.2 has the MAC address 02:00:00:00:00:99, and its record has 02:24:19:00:01:01/,
        () => ip('neighbour replace 10.88.1.2 lladdr 02:00:00:00:00:99 dev tap-int-alpha'),
        () => ip('neighbour delete 10.88.1.2 dev tap-int-alpha'),
      ],
      [
        1,
        /^warning store: Redis removes records .* is allkeys-lru\. Remedy: set maxmemory-policy to noeviction/,
        () => setPolicy('allkeys-lru'),
        () => setPolicy('noeviction'),
      ],
      [
        1,
        /^warning key-files: .*password has mode 0644: every user can read it\. Remedy: chmod o= /,
        () => chmodSync(password, 0o644),
        () => chmodSync(password, 0o600),
      ],
      [
        2,
        /^failure guests: srv-alpha: packets to 10\.88\.1\.2 leave by guest1 to the gateway 10\.77\.0\.2, not by tap-int-alpha/,
        () => ip('route add 10.88.1.2/32 via 10.77.0.2'),
        () => ip('route delete 10.88.1.2/32 via 10.77.0.2'),
      ],
      [
        2,
        /^failure guests: srv-alpha: link tap-int-alpha is down/,
        () => ip('link set tap-int-alpha down'),
        () => ip('link set tap-int-alpha up'),
      ],
    ] as const) {
      await breakIt()
      t.match(await doctor(), { status, found: [found] })
      await repair()
    }
    await until(async () => (await doctor()).status === 0, 'the hypervisor to be sound again')
  },
)
