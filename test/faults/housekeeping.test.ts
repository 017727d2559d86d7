/** A host runs out of a resource: guests are still served, and the operator sees one log line and a metric. */
import { mkdtempSync, rmSync } from 'node:fs'
import { rename } from 'node:fs/promises'
import { connect, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { matchAll } from '../support/fixtures/match.ts'
import { moveComparison } from '../support/fixtures/resealed-journal.ts'

interface Env extends Readonly<Record<string, string>> {
  readonly IMDS_STORE: string
  readonly IMDS_STATE_DIR: string
}
interface Host {
  readonly daemon: TestDaemon
  readonly env: Env
  change(): Promise<void>
}

/** A daemon on a file store, whose guest is 127.0.0.1. `within` returns the command that runs the daemon. */
async function aHost(t: Test, within: (state: string) => readonly string[]): Promise<Host> {
  const [records, state] = ['store', 'state'].map((name) => mkdtempSync(join(tmpdir(), `imds-${name}-`))) as [
    string,
    string,
  ]
  t.teardown(() => {
    for (const directory of [records, state]) rmSync(directory, { recursive: true, force: true })
  })
  const env: Env = { IMDS_STORE: `file:${records}`, IMDS_STATE_DIR: state, IMDS_RESYNC_SECONDS: '1' }
  const store = await openStore({ url: env.IMDS_STORE })
  const daemon = await startDaemon(t, env, within(state))
  let revision = 0
  const change = async () => {
    const fqdn = `r${++revision}.example.com`
    await store.put(
      anInstance({
        revision,
        fqdn,
        interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['127.0.0.1/8'] }],
      }),
    )
    await until(async () => (await daemon.get('/latest/meta-data/hostname')).body.toString() === fqdn, 'the change')
  }
  await change()
  return { daemon, env, change }
}

const warnings = (daemon: TestDaemon, of: string) =>
  daemon.log.filter(({ level, msg }) => level === 'warn' && msg.startsWith(of))

/** Counts connections that were dropped because there was no file descriptor. */
const DROPPED = 'imds_connections_dropped_total{reason="descriptors"}'

/**
 * Opens a connection of another guest: without a request, or with one that has been answered. The daemon may drop it.
 */
async function openIdle({ guestPort }: TestDaemon, event: 'connect' | 'data', from = '127.0.0.2'): Promise<Socket> {
  const socket = connect({ port: guestPort, host: '127.0.0.1', localAddress: from }).on('error', () => undefined)
  if (event === 'data') socket.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n')
  await new Promise((resolve) => socket.once(event, resolve).once('close', resolve))
  return socket
}

t.test('without free file descriptors operators are answered, and guests again when some are free', async (t) => {
  const host = await aHost(t, () => ['prlimit', '--nofile=128'])
  const { daemon, change } = host
  const idle: Socket[] = []
  for (let i = 0; i < 200; i++) idle.push(await openIdle(daemon, 'connect'))
  await until(async () => (await daemon.metric(DROPPED)) > 0, 'dropped connections')
  await until(
    async () => (await daemon.metric('imds_journal_rewrites_total{result="written"}')) > 0,
    'the first journal',
  )
  const before = await daemon.metric('imds_journal_writes_total{result="written"}')
  for (const socket of idle.splice(0, 100)) socket.destroy()
  await until(
    () =>
      daemon.get('/latest/meta-data/').then(
        ({ status }) => status === 200,
        () => false,
      ),
    'free file descriptors',
  )
  await change()
  t.ok((await daemon.metric('imds_journal_writes_total{result="written"}')) > before, 'the change is on disk')
  t.equal(await daemon.metric('imds_journal_writes_total{result="failed"}'), 0)
  matchAll(t, warnings(daemon, 'connections dropped'), [{ network: 'default' }])
  for (const socket of idle) socket.destroy()
})

t.test('F2: idle connections are closed in favour of connections that send requests', async (t) => {
  const { daemon } = await aHost(t, () => ['prlimit', '--nofile=128'])
  const idle: Socket[] = []
  while ((await daemon.metric(DROPPED)) === 0)
    // more than one peer may open
    idle.push(await openIdle(daemon, 'data', `127.0.0.${2 + (idle.length % 50)}`))
  t.equal((await daemon.get('/latest/meta-data/instance-id')).status, 200)
  for (const socket of idle) socket.destroy()
})

t.test('F2: connections that still send after their response are closed in favour of others', async (t) => {
  const { daemon } = await aHost(t, () => ['prlimit', '--nofile=128'])
  const sending: Socket[] = []
  const drip = setInterval(() => {
    for (const socket of sending) if (socket.writable) socket.write('x')
  }, 100)
  t.teardown(() => {
    clearInterval(drip)
    for (const socket of sending) socket.destroy()
  })
  while ((await daemon.metric(DROPPED)) === 0) {
    const socket = connect({
      port: daemon.guestPort,
      host: '127.0.0.1',
      localAddress: `127.0.0.${2 + (sending.length % 50)}`,
      allowHalfOpen: true,
    })
      .on('error', () => undefined)
      .resume()
    socket.write('POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n')
    await new Promise((resolve) => socket.once('end', resolve).once('close', resolve))
    sending.push(socket)
  }
  t.equal((await daemon.get('/latest/meta-data/instance-id')).status, 200)
})

t.test('after the clock was set back a day the journal is still served', async (t) => {
  const { daemon, env } = await aHost(t, () => [])
  await daemon.stop()
  await rename(env.IMDS_STORE.replace('file:', ''), `${env.IMDS_STATE_DIR}/away`)
  moveComparison(env.IMDS_STATE_DIR, 86_400_000)
  const next = await startDaemon(t, env)
  t.equal((await next.get('/latest/meta-data/hostname')).body.toString(), 'r1.example.com')
})
