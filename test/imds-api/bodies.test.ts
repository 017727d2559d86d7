/** Unfinished bodies: which of them make room for others (http/body-budget.ts), and that their connections end. */
import { once } from 'node:events'
import { connect, type AddressInfo, type Socket } from 'node:net'
import fastify from 'fastify'
import t, { type Test } from 'tap'
import { BodyBudget } from '../../src/imds-api/http/body-budget.ts'
import { addBodyParser, releaseBody } from '../../src/imds-api/http/body.ts'
import { Refusal } from '../../src/imds-api/model/refusal.ts'
import { until } from '../support/programs/daemon.ts'

const KIB = 1024
const LIMITS = { owner: 64 * KIB, long: 256 * KIB, all: 256 * KIB }
/** An unfinished body of this length has arrived in part. */
const [LENGTH, PART] = [60 * KIB, 16 * KIB]

/** A server whose bodies count for the addresses of their clients. `clock`: of the budget. */
async function aServer(t: Test) {
  const clock = { nowMs: 0 }
  const server = fastify()
  t.teardown(() => server.close())
  server.decorateRequest('owner', '')
  server.addHook('onRequest', (request, _reply, done) => {
    request.owner = request.raw.socket.remoteAddress!
    done()
  })
  const budget = new BodyBudget(LIMITS, () => clock.nowMs)
  addBodyParser(server, budget)
  server.addHook('onSend', releaseBody)
  server.setErrorHandler((error, _request, reply) =>
    reply.code(error instanceof Refusal ? 503 : 500).send({ message: (error as Error).message }),
  )
  let arrived = 0
  const take = budget.take.bind(budget)
  budget.take = (body, bytes, isLong) => {
    const refusal = take(body, bytes, isLong)
    arrived += bytes
    return refusal
  }
  server.post('/', (request, reply) => reply.send(request.body))
  await server.listen({ host: '127.0.0.1', port: 0 })
  const { port } = server.server.address() as AddressInfo
  const open = async (localAddress: string, length: number, part: string) => {
    const socket = connect({ port, host: '127.0.0.1', localAddress })
    t.teardown(() => socket.destroy())
    socket.on('error', () => undefined).setEncoding('latin1')
    const client = { socket, text: '', isClosed: false }
    socket.on('data', (text: string) => (client.text += text)).on('close', () => (client.isClosed = true))
    await once(socket, 'connect')
    const before = arrived
    socket.write(
      `POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: ${length}\r\n\r\n${part}`,
    )
    await until(() => arrived - before >= part.length, 'the body to arrive')
    return client
  }
  return { clock, open, unfinished: (address: string) => open(address, LENGTH, ' '.repeat(PART)) }
}
interface Client {
  readonly socket: Socket
  readonly text: string
  readonly isClosed: boolean
}

const isRefused = ({ text, isClosed }: Client) => isClosed && text.startsWith('HTTP/1.1 503')

t.test('the longest idle body of the owner with the most goes first, and its connection ends', async (t) => {
  const { clock, open, unfinished } = await aServer(t)
  const held: Client[] = []
  for (const address of ['127.0.5.1', '127.0.5.2', '127.0.5.3', '127.0.5.4'])
    for (let i = 0; i < LIMITS.owner / PART; i++) {
      clock.nowMs += 1
      held.push(await unfinished(address))
    }
  const late = await open('127.0.5.5', PART, `"${'x'.repeat(PART - 2)}"`)
  await until(() => late.text.includes('\r\n\r\nx'), 'the whole body to be answered')
  t.match(late.text, /^HTTP\/1\.1 200 /)
  await until(() => isRefused(held[0]!), 'the longest idle one to end')
  t.equal(held.filter(({ text, isClosed }) => text !== '' || isClosed).length, 1, `of ${held.length}`)
})

t.test('a body that is refused, and does not go on, does not keep its connection', async (t) => {
  const { unfinished } = await aServer(t)
  for (let i = 0; i < LIMITS.owner / PART; i++) await unfinished('127.0.5.1')
  const refused = await unfinished('127.0.5.1')
  await until(() => isRefused(refused), 'its connection to end')
  t.match(refused.text, /\r\nconnection: close\r\n/i)
})
