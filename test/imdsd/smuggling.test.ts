/** Request smuggling and requests in pieces: the daemon never mistakes where a request begins and ends. */
import { connect } from 'node:net'
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { AFTER, OPEN, SHAPES, SMUGGLED } from '../fuzz/smuggling.ts'
import { send, WHOLE } from '../fuzz/send.ts'
import { readAnswers } from '../fuzz/wire.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { testDirectory } from '../support/test-directory.ts'

const SECRET = 'what is smuggled'
/** The number of guests over which the tests distribute their connections, so that none exceeds its share. */
const GUESTS = 8
const address = (n: number) => `127.0.0.${1 + (n % GUESTS)}`

/** A guest with more user-data than a socket buffers. */
const LARGE = '127.0.0.50'

let daemon: TestDaemon
t.before(async () => {
  const url = `file:${testDirectory(t)}`
  const store = await openStore({ url, userDataMaxBytes: 1_000_000 })
  for (let n = 0; n < GUESTS; n++) {
    const interfaces = loopback(1, { ipv4Addresses: [`${address(n)}/8`] })
    await store.put(anInstance({ id: `srv-n${n}`, interfaces }), Buffer.from(SECRET))
  }
  await store.put(anInstance({ id: 'srv-large', interfaces: loopback(50) }), Buffer.alloc(1_000_000, 'x'))
  daemon = await startDaemon(t, { IMDS_STORE: url, IMDS_USER_DATA_MAX_BYTES: '1000000' })
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'the instances')
})

t.test('smuggling: an ambiguous request gets one 400 and is closed; any other is answered once', async (t) => {
  for (const [n, { name, bytes, outcome }] of SHAPES.entries()) {
    const { text, stuck } = await send(daemon.guestPort, address(n), bytes + AFTER, WHOLE)
    const { answers, wrong } = readAnswers(text, false)
    t.same([wrong, stuck], [undefined, false], name)
    t.same(
      answers.map(({ status }) => status),
      outcome === 'refused' ? [400] : outcome,
      name,
    )
    if (outcome === 'refused' || bytes.includes('Upgrade'))
      t.equal(answers.at(-1)?.headers.get('connection'), 'close', name)
    const isPipelined = bytes.includes(SMUGGLED) && answers.filter(({ status }) => status === 200).length === 3
    t.equal(answers.filter(({ body }) => body === SECRET).length, isPipelined ? 1 : 0, name)
  }
})

const statusesOf = (text: string) => readAnswers(text, false).answers.map(({ status }) => status)

/** Sends bytes and half-closes the connection at once. Returns everything that is received. `sent`: when all has left. */
async function sendAndHalfClose(from: string, bytes: string, sent?: () => void): Promise<string> {
  const socket = connect({ port: daemon.guestPort, host: '127.0.0.1', localAddress: from, allowHalfOpen: true })
  const chunks: string[] = []
  socket.setEncoding('latin1').on('data', (chunk: string) => chunks.push(chunk))
  socket.end(bytes, sent)
  await new Promise((resolve) => socket.on('close', resolve))
  return chunks.join('')
}

/** The size of the buffer into which Node reads from a socket. */
const READ_BUFFER_BYTES = 65_536

for (const [what, target, many] of [
  ['listings', '/latest/meta-data/', 400],
  ['large user-data', '/latest/user-data', 20],
] as const) {
  t.test(`A9: pipelined requests are all answered, though the sender half-closes: ${what}`, async (t) => {
    t.equal(
      statusesOf(
        await sendAndHalfClose(
          what === 'listings' ? address(1) : LARGE,
          `GET ${target} HTTP/1.1\r\nHost: x\r\n\r\n`.repeat(many),
        ),
      ).length,
      many,
    )
  })
}

t.test('A9: a request that fills the read buffer is answered, though the half-close arrives with it', async (t) => {
  const head = (length: number) => `PUT ${OPEN} HTTP/1.1\r\nHost: x\r\nContent-Length: ${length}\r\n\r\n`
  const length = READ_BUFFER_BYTES - head(READ_BUFFER_BYTES - 100).length
  const bytes = head(length) + 'x'.repeat(length)
  t.equal(bytes.length, READ_BUFFER_BYTES)
  daemon.process.kill('SIGSTOP')
  const sent = Promise.withResolvers<undefined>()
  const text = sendAndHalfClose(address(2), bytes, () => sent.resolve(undefined))
  await sent.promise
  daemon.process.kill('SIGCONT')
  t.same(statusesOf(await text), [405])
})
