/**
 * The operators' listeners: what a caller over TCP can hold, and listeners that cannot be opened. The paths are in
 * test/unit/imdsd/operator/server.test.ts.
 */
import { once } from 'node:events'
import { chownSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import type { Readiness } from '../../src/imdsd/operator/documents.ts'
import { openStore } from '../../src/store/open.ts'
import { request, startDaemon, until } from '../support/programs/daemon.ts'
import { must, run, startChild, type Child } from '../support/programs/processes.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { makeHypervisor, SERVICE, withoutNamespaces } from '../support/netns/namespaces.ts'
import { shortDirectory, testDirectory } from '../support/test-directory.ts'

const ID = '/latest/meta-data/instance-id'

async function aStore(directory: string): Promise<string> {
  const url = `file:${directory}`
  const store = await openStore({ url })
  await store.put(anInstance({ interfaces: loopback() }))
  await store.close()
  return url
}

t.test('idle connections of operators leave guests and Prometheus served, with few descriptors', async (t) => {
  const daemon = await startDaemon(t, { IMDS_STORE: await aStore(testDirectory(t)) }, [
    'sh',
    '-c',
    'ulimit -n 300 && exec "$@"',
    'sh',
  ])
  await until(async () => (await daemon.get(ID)).status === 200, 'the instance')
  const held: Socket[] = []
  t.teardown(() => {
    for (const socket of held) socket.destroy()
  })
  const hold = async (localAddress: string, text = '') => {
    const socket = connect({ port: daemon.operatorPort, host: '127.0.0.1', localAddress })
    held.push(socket.on('error', () => undefined))
    await once(socket.resume(), 'connect')
    socket.write(text)
  }
  const isServed = async () => [
    (await daemon.get(ID)).status,
    (await request(daemon.operatorPort, '/metrics', '127.0.0.9')).status,
  ]

  await t.test('from one address', async (t) => {
    for (let i = 0; i < 400; i++) await hold('127.0.0.1')
    t.same(await isServed(), [200, 200])
  })

  await t.test('from 100 addresses', async (t) => {
    for (let i = 0; i < 400; i++) await hold(`127.0.1.${i % 100}`, 'GET /metrics HTTP/1.1\r\n')
    t.same(await isServed(), [200, 200])
  })

  await t.test('of which only a few stay open, with one response each', async (t) => {
    await until(() => held.filter((socket) => !socket.destroyed).length < 80, 'the excess to be closed')
    const pipelining = connect(daemon.operatorPort, '127.0.0.1', () => {
      pipelining.write('GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(300))
    })
    held.push(pipelining)
    let text = ''
    pipelining.setEncoding('latin1').on('data', (chunk: string) => {
      text += chunk
    })
    const statuses = () => text.match(/^HTTP\/1.1 \d+/gm) ?? []
    await until(() => statuses().length === 300, 'the responses')
    t.same(new Set(statuses().slice(1)), new Set(['HTTP/1.1 503']), 'the daemon holds the text of one response at most')
    t.same(await isServed(), [200, 200])
  })
})

/**
 * Starts a process that listens, given the arguments of `listen` in JavaScript. Its first value is its port, if it has
 * one.
 */
async function aListener(where: string): Promise<Child> {
  return startChild([
    process.execPath,
    '-e',
    `
    const server = require('node:net').createServer().listen(${where}, () => console.log('up', server.address().port))
    process.stdin.resume().on('end', () => process.exit())`,
  ])
}

/** The condition that a listener of operators is not open, in a response of /readyz. */
const cutOff = (body: Buffer) =>
  (JSON.parse(body.toString()) as Readiness).conditions.find(({ code }) => code === 'operators-cut-off')?.text

t.test("while another process has the operators' port, guests are served; it opens once that has ended", async (t) => {
  const other = await aListener('0, `127.0.0.1`')
  t.teardown(() => other.stop())
  const place = `127.0.0.1:${other.readyValue}`
  const daemon = await startDaemon(t, { IMDS_STORE: await aStore(testDirectory(t)), IMDS_OPERATOR_LISTEN: place })
  await until(async () => (await daemon.get(ID)).status === 200, 'the instance')
  const problem = `IMDS_OPERATOR_LISTEN: cannot listen on ${place}: another program listens there already: end it, or correct IMDS_OPERATOR_LISTEN`
  const { status, body } = await daemon.operator('/readyz')
  t.same([status, cutOff(body)], [503, problem])
  t.notOk(
    'operator' in daemon.log.find(({ msg }) => msg === 'listening')!,
    'the log does not say that it listens there',
  )
  process.kill(other.pid, 'SIGKILL')
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'the listener to open')
  t.equal((await request(Number(place.split(':')[1]), '/readyz')).status, 200)
})

t.test("while the operators' socket cannot be opened, guests are served, and readyz on TCP says why", async (t) => {
  const daemon = await startDaemon(t, {
    IMDS_STORE: await aStore(testDirectory(t)),
    IMDS_OPERATOR_SOCKET: '/proc/imds/operator.sock',
  })
  await until(async () => (await daemon.get(ID)).status === 200, 'the instance')
  const { status, body } = await request(daemon.operatorPort, '/readyz')
  const problem =
    'IMDS_OPERATOR_SOCKET: cannot listen on unix:/proc/imds/operator.sock: its directory must exist, and this user must be able to write to it'
  t.same([status, cutOff(body)], [503, problem])
  t.notOk('operatorSocket' in daemon.log.find(({ msg }) => msg === 'listening')!)
  t.equal(await daemon.stop(), 0, 'a stop ends the retries')
})

t.test(
  "a socket that another user has left is replaced, in a directory of the daemon's user",
  { skip: process.getuid?.() !== 0 && 'needs root' },
  async (t) => {
    const directory = shortDirectory(t)
    const path = join(directory, 'operator.sock')
    const other = await aListener(`'${path}'`)
    t.teardown(() => other.stop())
    process.kill(other.pid, 'SIGKILL')
    await other.ended
    chownSync(path, 65_534, 65_534)
    const plain = ['setpriv', '--bounding-set=-dac_override,-dac_read_search'] // root, for whom permissions hold
    const daemon = await startDaemon(
      t,
      { IMDS_STORE: await aStore(join(directory, 'store')), IMDS_OPERATOR_SOCKET: path },
      plain,
    )
    await until(async () => (await daemon.operator('/readyz')).status === 200, 'readiness')
  },
)

t.test(
  'an address outside of IMDS_OPERATOR_ALLOW is closed before it is read',
  { skip: withoutNamespaces() },
  async (t) => {
    const hypervisor = await makeHypervisor()
    t.teardown(() => hypervisor.remove())
    for (const address of ['10.99.0.1', '10.99.0.2', '10.98.0.1'])
      await must([...hypervisor.within, 'ip', 'address', 'add', `${address}/32`, 'dev', 'lo'])
    const daemon = await startDaemon(
      t,
      {
        IMDS_STORE: await aStore(testDirectory(t)),
        IMDS_LISTEN: `${SERVICE}:80`,
        IMDS_OPERATOR_LISTEN: '10.99.0.1:9169',
        IMDS_OPERATOR_ALLOW: '10.99.0.0/24',
      },
      hypervisor.within,
    )
    const scrape = async (from: string) => {
      const { status, stdout } = await run([
        ...hypervisor.within,
        'curl',
        '-s',
        '-o',
        '/dev/null',
        '-w',
        '%{http_code}',
        '--interface',
        from,
        'http://10.99.0.1:9169/metrics',
      ])
      return [status, stdout.toString()]
    }
    t.same(await scrape('10.99.0.2'), [0, '200'])
    const code = `
    const { connect } = require('node:net')
    let closed = 0
    for (let i = 0; i < 400; i++) connect({ host: '10.99.0.1', port: 9169, localAddress: '10.98.0.1' })
      .on('error', () => {}).on('data', () => console.log('data')).on('close', () => { if (++closed === 400) console.log('all closed') })`
    t.equal(
      (await must([...hypervisor.within, process.execPath, '-e', code])).toString(),
      'all closed\n',
      'connections that send nothing are closed at once, without a response',
    )
    t.same(await scrape('10.99.0.2'), [0, '200'])
    const warnings = daemon.log.filter(({ level }) => level === 'warn')
    t.equal(warnings.length, 1, 'one line says so, not 400')
    t.match(warnings[0], { address: '10.98.0.1', msg: /IMDS_OPERATOR_ALLOW/ })
  },
)
