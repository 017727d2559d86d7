/** Open connections when the daemon stops. systemd-restart.test.ts tests that a restart refuses no new connection. */
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import t, { type Test } from 'tap'
import { until, type TestDaemon } from '../support/programs/daemon.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { parseAnswer } from '../support/fixtures/socket.ts'
import { startServing } from '../support/programs/served.ts'

const ID = '/latest/meta-data/instance-id'
const REQUEST = `GET ${ID} HTTP/1.1\r\nHost: x\r\n\r\n`

const start = async (t: Test) =>
  (await startServing(t, (store) => store.put(anInstance({ interfaces: loopback() })))).daemon

/**
 * Opens a connection and sends bytes. The daemon has received them when a request on a later connection is answered.
 */
async function open(daemon: TestDaemon, bytes: string): Promise<{ socket: Socket; ended: Promise<string> }> {
  const socket = connect(daemon.guestPort, '127.0.0.1')
  await once(socket, 'connect')
  const ended = new Promise<string>((resolve, reject) => {
    let text = ''
    socket.setEncoding('latin1').on('data', (chunk: string) => {
      text += chunk
    })
    socket.on('error', reject).on('close', () => resolve(text))
  })
  socket.write(bytes)
  await daemon.get(ID)
  return { socket, ended }
}

async function beginStop(daemon: TestDaemon): Promise<void> {
  daemon.process.kill('SIGTERM')
  await until(() => daemon.log.at(-1)?.msg === 'stopping', 'the stop')
}

t.test('A9: a request that is half sent when the daemon stops is answered with Connection: close', async (t) => {
  const daemon = await start(t)
  const { socket, ended } = await open(daemon, REQUEST.slice(0, 20))
  await beginStop(daemon)
  socket.write(REQUEST.slice(20))
  t.match(parseAnswer(await ended), { status: 200, body: 'srv-abcde', headers: { connection: 'close' } })
  t.equal(await daemon.stop(), 0)
})

t.test('G3: a stopping daemon closes a keep-alive connection between two requests', async (t) => {
  const daemon = await start(t)
  const { ended } = await open(daemon, REQUEST)
  await beginStop(daemon)
  t.equal((await ended).match(/HTTP\/1\.1 200 OK/g)?.length, 1)
  t.equal(await daemon.stop(), 0)
})

t.test('F2: neither an endless request nor an idle connection delays the stop of the daemon', async (t) => {
  const daemon = await start(t)
  const all = [
    await open(daemon, REQUEST.slice(0, 20)),
    await open(daemon, ''),
    await open(daemon, `POST ${ID} HTTP/1.1\r\nContent-Length: 9\r\n\r\nx`),
  ]
  for (const { ended } of all) ended.catch(() => undefined)
  t.equal(await daemon.stop(), 0)
})
