/**
 * Each condition of imdsd, made on real parts: exactly those that are made are found, and the log, readyz, the metric,
 * doctor and the page say the same.
 */
import { chmodSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { CONDITIONS } from '../../src/imdsd/conditions/table.ts'
import type { Readiness } from '../../src/imdsd/operator/documents.ts'
import type { CheckResult } from '../../src/runtime/check.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import { KEY_KINDS, makeCertificate, makeIdentity } from '../support/fixtures/identity.ts'
import { aLocalInstance, loopback } from '../support/fixtures/instance.ts'
import { openListeningSocket } from '../support/netns/listening-socket.ts'
import { makeHypervisor, SERVICE, withoutNamespaces } from '../support/netns/namespaces.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { must, run } from '../support/programs/processes.ts'
import { rememberState } from '../support/redis/go-back.ts'
import { freePort, startRedis } from '../support/redis/redis.ts'
import { serves } from '../support/redis/shapes.ts'
import { anAuthority } from '../support/redis/tls.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

const KEYS = keysOf('gb1')
const made = new Set<string>()

type Within = readonly string[]

/** Starts a daemon. `agree` waits until exactly these conditions are found, and compares all that shows them. */
async function startHost(
  t: Test,
  env: Readonly<Record<string, string>>,
  within: Within = [],
  doctorIn = () => within,
  fds: readonly number[] = [],
) {
  const daemon = await startDaemon(t, { IMDS_RESYNC_SECONDS: '1', ...env }, within, { fds })
  const ready = async () => {
    const { status, body } = await daemon.operator('/readyz')
    return { status, conditions: (JSON.parse(body.toString()) as Readiness).conditions }
  }
  const agree = async (what: string, status: 200 | 503, ...codes: readonly string[]) => {
    const wanted = codes.toSorted().join()
    let found = ''
    const isWanted = async () => {
      found = (await ready()).conditions
        .map(({ code }) => code)
        .sort()
        .join()
      return found === wanted
    }
    await until(isWanted, what, 60_000).catch((error: unknown) => {
      throw new Error(`${what}: "${found}" in place of "${wanted}"`, { cause: error })
    })
    const isLogged = () =>
      CONDITIONS.every(({ code }) => {
        const line = daemon.log.findLast((one) => one['code'] === code)
        return codes.includes(code) ? line?.level === 'warn' : line === undefined || line.level === 'info'
      })
    await until(isLogged, `the log: ${what}`, 30_000)
    t.equal((await ready()).status, status, `readyz: ${what}`)
    const variables = { ...programEnvironment(), IMDS_STATE_DIR: daemon.directory, ...env }
    const doctor = await run(
      [...doctorIn(), process.execPath, IMDSCTL, '--json', 'doctor', '--operator', daemon.operatorSocket],
      { env: variables },
    )
    const { checks } = JSON.parse(doctor.stdout.toString()) as { readonly checks: readonly CheckResult[] }
    const page = (await daemon.operator('/')).body.toString()
    const metrics = (await daemon.operator('/metrics')).body.toString().split('\n')
    for (const { code, severity } of CONDITIONS) {
      const isFound = codes.includes(code)
      if (isFound) made.add(code)
      const isInDoctor = checks.some((check) => check.code === code && check.severity === severity)
      t.equal(isInDoctor, isFound, `doctor: ${code}`)
      const value = `imds_condition{code="${code}",severity="${severity}"} ${Number(isFound)}`
      t.ok(metrics.includes(value), value)
      t.equal(page.includes(`>${code}<`), isFound, `the page: ${code}`)
    }
  }
  return { daemon, agree }
}

t.test('of Redis, and of this hypervisor in it', async (t) => {
  const directory = testDirectory(t)
  const [authority, port] = [await anAuthority(directory, 'ours'), String(await freePort())]
  const { certFile, keyFile } = await authority.issue('redis')
  const files = ['--tls-ca-cert-file', authority.caFile, '--tls-cert-file', certFile, '--tls-key-file', keyFile]
  const redis = await startRedis(t, ['--tls-port', port, '--tls-auth-clients', 'no', ...files])
  const env = {
    IMDS_STORE: `rediss://127.0.0.1:${port}`,
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_REDIS_CA_FILE: authority.caFile,
  }
  const { daemon, agree } = await startHost(t, env)
  const always = 'store-certificate'
  await agree('an empty Redis', 503, 'store-empty', always)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  await must([process.execPath, IMDSCTL, '--store', redis.url, '--region', 'gb1', 'init'])
  await agree('a hypervisor that no record names', 200, 'hypervisor-unnamed', always)
  for (const n of [1, 2, 3]) await store.put(aLocalInstance(n, 1, { options: { reports: 'enabled' } }))
  await agree('three instances', 200, always)

  const write = async (id: string, record: string) => {
    await redis.client.hset(KEYS.instance(id), { record, digest: record.length })
    await redis.client.hset(KEYS.hypervisor('hv1'), id, record.length)
  }
  await write('srv-n4', '{')
  await agree('a record that cannot be used', 200, 'record-not-served', always)
  await redis.client.del(KEYS.instance('srv-n4'))
  await redis.client.hdel(KEYS.hypervisor('hv1'), 'srv-n4')
  await redis.client.del(KEYS.instance('srv-n3'))
  await redis.client.hdel(KEYS.hypervisor('hv1'), 'srv-n3')
  await redis.client.hdel(KEYS.addresses('default'), '127.0.0.3')
  await agree('a record that was deleted by hand', 200, 'instance-absent', always)
  await store.put(aLocalInstance(5, 1, { interfaces: loopback(3) }))
  await agree('its address was given to another', 200, 'instance-absent', 'address-lost', always)
  await store.remove('srv-n3', 2)
  await agree('it is removed', 200, always)

  await redis.client.config('SET', 'maxmemory', '1')
  const send = (path: string, headers: Record<string, string>, body?: string) =>
    fetch(`http://127.0.0.1:${daemon.guestPort}/latest/${path}`, { method: 'PUT', headers, ...(body && { body }) })
  const token = await (await send('api/token', { 'X-aws-ec2-metadata-token-ttl-seconds': '60' })).text()
  t.equal((await send('reports/boot', { 'X-aws-ec2-metadata-token': token }, 'done')).status, 200)
  await agree('a full Redis, with a report that waits', 200, 'store-not-written', always)
  t.match(await daemon.condition('store-not-written'), /OOM/)
  await redis.client.config('SET', 'maxmemory', '0')
  await agree('a Redis with room again', 200, always)

  const goBack = await rememberState(redis.client)
  await store.put(aLocalInstance(1, 2))
  await serves(daemon, 2)
  await goBack()
  await agree('a Redis that has lost the last publish', 200, 'store-behind', always)
  await redis.client.rename(KEYS.hypervisor('hv1'), 'away')
  await redis.client.set(KEYS.hypervisor('hv1'), 'x')
  await agree('an index of a wrong type', 200, 'store-read-failed', 'store-behind', always)
  await redis.client.rename('away', KEYS.hypervisor('hv1'))
  const clone = await startDaemon(t, { ...env, IMDS_RESYNC_SECONDS: '1' })
  await agree('a second daemon of this name', 200, 'hypervisor-duplicate', 'store-behind', always)
  await clone.stop()
  await redis.kill()
  await agree('Redis away', 200, 'store-lost', 'hypervisor-duplicate', 'store-behind', always)
})

t.test('of records, in files that other programs write', async (t) => {
  const directory = testDirectory(t)
  const put = (n: number, record: unknown = aLocalInstance(n)) =>
    writeFileSync(join(directory, `srv-n${n}.json`), typeof record === 'string' ? record : JSON.stringify(record))
  for (const n of [1, 2, 3, 4]) put(n)
  const { agree } = await startHost(t, { IMDS_STORE: `file:${directory}` })
  await agree('four instances', 200)
  put(1, '{')
  put(3, aLocalInstance(3, 2, { interfaces: loopback(4) }))
  await agree('one faulty, two with an address', 200, 'record-faulty', 'address-contested')
  for (const n of [2, 3, 4]) put(n, '{')
  await agree('only faulty ones', 503, 'store-unusable', 'address-contested')
  for (const n of [1, 2, 3, 4]) put(n, aLocalInstance(n, 3))
  await agree('repaired ones', 200)
})

t.test('of the network around the daemon, and of its process', { skip: withoutNamespaces() }, async (t) => {
  const hypervisor = await makeHypervisor()
  t.teardown(() => hypervisor.remove())
  const ip = (words: string) => must([...hypervisor.within, 'ip', ...words.split(' ')])
  await ip('address add 10.88.0.1/32 dev lo')
  const directory = testDirectory(t, { store: { 'srv-n1.json': JSON.stringify(aLocalInstance(1)) } })
  const files = makeIdentity(KEY_KINDS.rsa, directory)
  const identity = (name: string, days: number) => ({
    IMDS_IDENTITY_KEY_FILE: files.keyFile,
    IMDS_IDENTITY_CERT_FILE: makeCertificate(files, name, days),
  })
  const env = { IMDS_STORE: `file:${directory}/store`, IMDS_FIREWALL: 'required', IMDS_LINK: 'tap-{interfaceId}' }

  const several = await startHost(
    t,
    { ...env, IMDS_LISTEN: `red=${SERVICE}:80,blue=10.88.0.1:80`, ...identity('past.pem', -1) },
    hypervisor.within,
  )
  await several.agree('two networks, no agent', 503, 'firewall-awaited', 'identity-invalid')
  const alone = await startHost(
    t,
    {
      ...env,
      IMDS_LISTEN: `${SERVICE}:8080`,
      IMDS_OPERATOR_LISTEN: `127.0.0.1:${several.daemon.operatorPort}`,
      ...identity('ends.pem', 9),
    },
    hypervisor.within,
  )
  const found = ['firewall-not-applied', 'operators-cut-off', 'identity-expires']
  await alone.agree("no agent, and another program has the operators' port", 503, ...found)
  await ip(`address delete ${SERVICE}/32 dev lo`)
  await alone.agree('without the address', 503, ...found, 'address-missing')
  const wait = ['wait', 'srv-n1', '--revision', '1', '--timeout', '1', '--operator', alone.daemon.operatorSocket]
  t.match(await run([process.execPath, IMDSCTL, ...wait], { env: programEnvironment() }), {
    status: 75,
    stderr: `no guest can reach imds at ${SERVICE}`,
  })

  const socket = await openListeningSocket(['env'], '127.0.0.1', await freePort())
  t.teardown(() => socket.close())
  const open = 'for fd in $(seq 10 950); do eval "exec $fd< /dev/null"; done'
  const script = `${open}; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=red; exec "$@"`
  const crowded = await startHost(
    t,
    { IMDS_STORE: env.IMDS_STORE, IMDS_LISTEN: 'red=127.0.0.1:8081' },
    ['prlimit', '--nofile=1024:1024', 'bash', '-c', script, 'bash'],
    () => [],
    [socket.fd],
  )
  await crowded.agree('a network without a socket, and few descriptors', 503, 'network-not-served', 'descriptors')
})

t.test('of the state directory, whose disk refuses', { skip: withoutNamespaces() }, async (t) => {
  const directory = testDirectory(t, { store: {}, state: {} })
  const put = (revision: number) => {
    const userData = 'x'.repeat(300_000)
    writeFileSync(join(directory, 'store/srv-n1.json'), JSON.stringify(aLocalInstance(1, revision)))
    writeFileSync(join(directory, 'store/srv-n1.user-data'), `${revision}${userData}`)
  }
  put(1)
  // root without the capability that ignores modes
  const mount = 'mount -t tmpfs -o size=32m,mode=700 tmpfs "$0" && exec setpriv --bounding-set=-dac_override "$@"'
  const state = join(directory, 'state')
  const { daemon, agree } = await startHost(
    t,
    { IMDS_STORE: `file:${directory}/store`, IMDS_STATE_DIR: state, IMDS_USER_DATA_MAX_BYTES: '400000' },
    ['unshare', '--mount', 'sh', '-c', mount, state],
    () => ['nsenter', '--mount', '--target', String(daemon.process.pid)],
  )
  const at = (name: string) => `/proc/${String(daemon.process.pid)}/root${state}/${name}`
  const fill = () => must(['sh', '-c', `cat /dev/zero > ${at('zero')} 2> /dev/null || true`])
  let revision = 1
  const change = async () => {
    put(++revision)
    const hostname = `r${revision}.n1.example.com`
    await until(async () => (await daemon.get('/latest/meta-data/hostname')).body.toString() === hostname, hostname)
  }
  await agree('a sound directory', 200)
  chmodSync(at(''), 0o755)
  await agree('other users can enter it', 200, 'state-directory')
  chmodSync(at(''), 0o500)
  for (let n = 0; n < 6; n++) await change()
  await agree('no file can be created', 200, 'journal-not-rewritten')
  await fill()
  await change()
  await agree('nor written or deleted', 200, 'journal-not-deleted')
  rmSync(at('zero'))
  chmodSync(at(''), 0o700)
  await agree('all is well again', 200)
  await fill()
  await change()
  await fill() // what the journal had
  await agree('a full disk', 200, 'view-not-kept')
  rmSync(at('zero'))
  await agree('room again', 200)
})

t.test('each row of the table was made', { skip: withoutNamespaces() }, (t) => {
  const codes = CONDITIONS.map(({ code }) => code)
  t.same(
    codes.filter((code) => !made.has(code)),
    [],
  )
  t.end()
})
