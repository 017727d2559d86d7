/** Request smuggling and requests in pieces: the daemon never mistakes where a request begins and ends. */
import { once } from 'node:events'
import { connect } from 'node:net'
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { AFTER, OPEN, SHAPES, SMUGGLED } from '../fuzz/smuggling.ts'
import { send, type Plan } from '../fuzz/send.ts'
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

SHAPES.forEach(({ name, bytes, outcome }, n) => {
  t.test(
    `smuggling: ${name}: ${outcome === 'refused' ? 'refused with 400, and closed' : `answered ${outcome.join(', ')}`}`,
    async (t) => {
      const { text, stuck } = await send(daemon.guestPort, address(n), bytes + AFTER, {
        splits: [],
        pauseMs: 0,
        then: 'end',
      })
      const { answers, wrong } = readAnswers(text, false)
      t.same([wrong, stuck], [undefined, undefined])
      t.same(
        answers.map(({ status }) => status),
        outcome === 'refused' ? [400] : outcome,
      )
      if (outcome === 'refused' || bytes.includes('Upgrade'))
        t.equal(answers.at(-1)?.headers.get('connection'), 'close')
      const isPipelined = bytes.includes(SMUGGLED) && answers.filter(({ status }) => status === 200).length === 3
      t.equal(
        answers.filter(({ body }) => body === SECRET).length,
        isPipelined ? 1 : 0,
        'the smuggled request is answered only if it is a pipelined request for every parser',
      )
    },
  )
})

/** A request with a body. It can be cut at every byte. */
const REQUEST = `GET ${OPEN} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n`
const HEAD_ENDS = REQUEST.indexOf('\r\n\r\n') + 4
const cutEverywhere = <T>(visit: (at: number) => Promise<T>) =>
  Promise.all(Array.from({ length: REQUEST.length + 1 }, (_, at) => visit(at)))
const statusesOf = (text: string) => readAnswers(text, false).answers.map(({ status }) => status)

t.test('A5: a request that arrives in two pieces, cut at any byte, is answered like a whole one', async (t) => {
  const answered = await cutEverywhere(async (at) => {
    const plan: Plan = { splits: [at], pauseMs: 20, then: 'end' }
    return statusesOf((await send(daemon.guestPort, address(at), REQUEST + AFTER, plan)).text).join()
  })
  t.same([...new Set(answered)], ['200'])
})

t.test('F2: a request cut at any byte and never completed times out and closes its connection', async (t) => {
  const sent = await cutEverywhere((at) =>
    send(daemon.guestPort, address(at), REQUEST, { splits: [], pauseMs: 0, cutAt: at, then: 'hold' }),
  )
  t.same(
    sent.filter(({ stuck }) => stuck !== undefined),
    [],
    'none is stuck',
  )
  for (const [at, { text }] of sent.entries()) {
    if (at < HEAD_ENDS) t.same(statusesOf(text), [400], `cut at ${at}`)
    else t.same(statusesOf(text), [200], `cut at ${at}`)
  }
})

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

t.test('invariant 6: a CONNECT pipelined after an unsent response, then a reset, ends one connection', async (t) => {
  const socket = connect({ port: daemon.guestPort, host: '127.0.0.1', localAddress: LARGE })
  socket.write(
    'GET /latest/user-data HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(10) + 'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n',
  )
  await once(socket, 'data') // the rest is more than the buffers of both sockets
  socket.resetAndDestroy()
  for (let i = 0; i < 3; i++) t.equal((await daemon.get(OPEN, address(2))).status, 200)
  t.equal(daemon.process.exitCode, null)
  t.same(
    daemon.log.filter(({ level }) => level === 'fatal'),
    [],
  )
})

/** Bytes that can follow valid requests, and the status that they get. */
const TAILS: readonly (readonly [what: string, bytes: string, statuses: readonly number[]])[] = [
  ['garbage', '\x01garbage\r\n\r\n', [400]],
  ['headers without end', `GET ${OPEN} HTTP/1.1\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`, [400]],
  ['CONNECT', 'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n', [405]],
  ['CONNECT with a body', 'CONNECT x:1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n', [405]],
  ['a request with a broken body', `GET ${OPEN} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZ\r\n`, [200]],
  ['a request in HTTP/1.0, followed by another one', `GET ${OPEN} HTTP/1.0\r\n\r\nGET / HTTP/1.0\r\n\r\n`, [200]],
  ['half a request', `GET ${OPEN} HT`, [400]],
]
for (const [row, [what, bytes, statuses]] of TAILS.entries()) {
  t.test(`A5: no refusal overtakes a response: pipelined requests are answered in order before ${what}`, async (t) => {
    for (const [role, status] of [
      ['guest', 200],
      ['unknown peer', 503],
    ] as const) {
      for (const many of [1, 2, 7, 60]) {
        // each has its own share
        const from = role === 'guest' ? address(2) : `127.0.${3 + row}.${many}`
        const { text } = await send(
          daemon.guestPort,
          from,
          `GET ${OPEN} HTTP/1.1\r\nHost: x\r\n\r\n`.repeat(many) + bytes,
          { splits: [], pauseMs: 0, then: 'end' },
        )
        t.same(
          statusesOf(text),
          [...Array.from({ length: many }, () => status), ...(role === 'guest' ? statuses : [503])],
          `${many} of one ${role}`,
        )
      }
    }
  })
}

t.test('A9: the last request of an unknown peer is answered, whatever follows it', async (t) => {
  for (const [n, following] of ['GET /x', `GET ${OPEN} HTTP/1.1\r\nHost: x\r\n\r\n`, '\x01', '\r\n'].entries()) {
    const { text } = await send(
      daemon.guestPort,
      `127.0.1.${n}`,
      `GET ${OPEN} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n${following}`,
      { splits: [], pauseMs: 0, then: 'end' },
    )
    t.same(statusesOf(text), [503], JSON.stringify(following))
  }
})

t.test('A7, E2: a request of any protocol from an unknown peer gets the same 503', async (t) => {
  for (const bytes of [
    `DESCRIBE ${OPEN} RTSP/1.0\r\n\r\n`,
    'PLAY *\r\nHost: x\r\n\r\n',
    `SOURCE ${OPEN} ICE/1.0\r\n\r\n`,
    `GET ${OPEN} RTSP/1.0\r\n\r\n`,
    'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    `PURGE ${OPEN} HTTP/1.0\r\n\r\n`,
  ]) {
    const { text } = await send(daemon.guestPort, '127.0.2.1', bytes, { splits: [], pauseMs: 0, then: 'end' })
    t.same(statusesOf(text), [503], bytes)
    t.notMatch(text, /json|FST_/)
  }
})
