/**
 * The client of the operator API, and the wait for the launch gate, against a server that answers as a test says.
 * launch-gate.test.ts and explain.test.ts have a real daemon.
 */
import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { ask, QUESTIONS, parsedAnswer, type Answer } from '../../src/imdsd/operator/client.ts'
import { waitForInstance } from '../../src/imdsd/operator/wait.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { run } from '../support/programs/processes.ts'

const { signal } = new AbortController()
const STATE = { id: 'srv-a', revision: 7 }
const EXPLANATION = { network: 'red', address: 'fd00::2', answer: 'metadata', status: 200, because: "it is srv-a's" }
const PACKETS = { admitted: 1, unknown_peers: 2, too_many: 3, fragments: 4, strays: 5, operators: 6 }
const DOCUMENT = {
  version: 'a.1',
  link: 'tap',
  listeners: [],
  operator: { address: '127.0.0.1', port: 9169 },
  limitedDscp: 11,
  guests: [],
}

/** A status with a body, or `reset`: the connection ends without a response; or `silent`: it stays open. */
type Reply = readonly [status: number, body: unknown] | 'reset' | 'silent'
interface Request {
  readonly method: string | undefined
  readonly url: string | undefined
  readonly body: string
}

/** Listens on a unix socket, and answers by `reply`, which gets the request. */
async function listening(t: Test, reply: (request: Request) => Reply) {
  const directory = mkdtempSync(join(tmpdir(), 'imds-client-'))
  const requests: Request[] = []
  const server = createServer((incoming, response) => {
    void incoming.toArray().then((chunks) => {
      const request = {
        method: incoming.method,
        url: incoming.url,
        body: Buffer.concat(chunks as Buffer[]).toString(),
      }
      requests.push(request)
      const answer = reply(request)
      if (answer === 'reset') incoming.socket.destroy()
      else if (answer !== 'silent')
        response.writeHead(answer[0]).end(typeof answer[1] === 'string' ? answer[1] : JSON.stringify(answer[1]))
    })
  })
  const path = join(directory, 'operator.sock')
  await once(server.listen(path), 'listening')
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
    rmSync(directory, { recursive: true, force: true })
  })
  return { requests, path, unix: `unix:${path}` }
}

t.test('the unix socket is asked, with ids and addresses escaped', async (t) => {
  const { requests, unix } = await listening(t, ({ url }) => [
    200,
    url?.startsWith('/explain') === true ? EXPLANATION : STATE,
  ])
  t.same(await ask(unix, QUESTIONS.instance('a/../b?x', false), signal), {
    kind: 'answered',
    status: 200,
    value: STATE,
  })
  await ask(unix, QUESTIONS.instance('srv-a', true), signal)
  t.same(await ask(unix, QUESTIONS.address('red', 'fd00::2&x=1'), signal), {
    kind: 'answered',
    status: 200,
    value: EXPLANATION,
  })
  t.same(
    requests.map(({ method, url }) => `${method!} ${url!}`),
    [
      'GET /instances/a%2F..%2Fb%3Fx',
      'GET /instances/srv-a?reason=',
      'GET /explain?address=fd00%3A%3A2%26x%3D1&network=red',
    ],
  )
})

t.test('the report of the firewall agent is the body of a POST; without one the document is read by GET', async (t) => {
  const { requests, unix } = await listening(t, () => [200, DOCUMENT])
  t.same(await ask(unix, QUESTIONS.firewall(undefined), signal), { kind: 'answered', status: 200, value: DOCUMENT })
  await ask(unix, QUESTIONS.firewall({ applied: 'a.1', failed: 'no', packets: PACKETS }), signal)
  await ask(unix, QUESTIONS.firewall({ applied: undefined, failed: undefined, packets: undefined }), signal)
  t.same(requests, [
    { method: 'GET', url: '/firewall', body: '' },
    {
      method: 'POST',
      url: '/firewall',
      body: `{"applied":"a.1","failed":"no","packets":${JSON.stringify(PACKETS)}}`,
    },
    { method: 'POST', url: '/firewall', body: '{"applied":null}' },
  ])
})

t.test('a document of another shape or with another status is refused', async (t) => {
  let reply: Reply = 'reset'
  const { unix } = await listening(t, () => reply)
  for (reply of [
    [503, STATE],
    [200, { id: 'srv-a' }],
    [200, '<html>'],
    [200, ''],
  ] satisfies Reply[]) {
    t.same(await ask(unix, QUESTIONS.instance('srv-a', false), signal), { kind: 'refused', status: reply[0] })
  }
  for (reply of [
    [200, STATE],
    [404, STATE],
    [409, STATE],
  ] satisfies Reply[])
    t.same(await ask(unix, QUESTIONS.instance('srv-a', false), signal), {
      kind: 'answered',
      status: reply[0],
      value: STATE,
    })
  reply = [200, { ...EXPLANATION, status: 'x' }]
  t.same(await ask(unix, QUESTIONS.address('red', 'fd00::2'), signal), { kind: 'refused', status: 200 })
})

t.test('a daemon that cannot be reached or is too slow is a value, with the remedy', async (t) => {
  const { unix, path } = await listening(t, () => 'silent')
  const stateAt = (operator: string, timeoutMs = 10_000) =>
    ask(operator, QUESTIONS.instance('srv-a', false), AbortSignal.timeout(timeoutMs))
  t.same(await stateAt(unix, 50), { kind: 'timeout' })
  t.match(await stateAt('unix:/nowhere/operator.sock'), { kind: 'unreachable', reason: /^ENOENT: .* Start the daemon/ })
  const left = join(path, '../left.sock')
  const code = `require('node:net').createServer().listen(process.argv[1], () => process.kill(process.pid, 'SIGKILL'))`
  await run([process.execPath, '-e', code, left])
  t.match(await stateAt(`unix:${left}`), { kind: 'unreachable', reason: /^ECONNREFUSED: .* Start it/ })
  for (const operator of ['unix:operator.sock', 'unix:', '127.0.0.1:9169', 'a b'])
    t.match(await stateAt(operator), { kind: 'unreachable', reason: 'it is not unix:/ABSOLUTE/PATH' }, operator)
})

t.test(
  'a user outside of the group of the socket gets an error that says how to get access',
  { skip: process.getuid?.() !== 0 && 'needs root' },
  async (t) => {
    const { unix, path } = await listening(t, () => [200, EXPLANATION])
    chmodSync(join(path, '..'), 0o755)
    const explain = async () =>
      run(
        [
          'setpriv',
          '--reuid=65534',
          '--regid=65534',
          '--clear-groups',
          process.execPath,
          IMDSCTL,
          'explain',
          '10.0.0.2',
          '--operator',
          unix,
        ],
        { env: programEnvironment() },
      )
    chmodSync(path, 0o660)
    t.match(await explain(), {
      status: 69,
      stderr: `the daemon at ${unix} cannot be reached: EACCES: this user may not connect. Use root, or add the user to the group imds (usermod -aG imds USER)`,
    })
    chmodSync(path, 0o666)
    t.match(await explain(), { status: 0 })
  },
)

t.test('without a document, the fault names the daemon and its answer', (t) => {
  const cases: [Answer<never>, string][] = [
    [{ kind: 'refused', status: 500 }, 'the daemon at unix:/run/x answered with status 500'],
    [
      { kind: 'refused', status: 200 },
      'the daemon at unix:/run/x answered with status 200 and a document that this version cannot read',
    ],
    [{ kind: 'timeout' }, 'the daemon at unix:/run/x does not answer'],
    [{ kind: 'unreachable', reason: 'ECONNREFUSED' }, 'the daemon at unix:/run/x cannot be reached: ECONNREFUSED'],
  ]
  for (const [answer, message] of cases) t.same(parsedAnswer(answer, 'unix:/run/x'), { ok: false, faults: [message] })
  t.end()
})

/**
 * Waits for revision 7 while the daemon sends these replies in turn, and repeats the last one. `reason` is its reply to
 * the question for the reason.
 */
async function waited(
  t: Test,
  replies: readonly Reply[],
  { timeoutMs = 60_000, reason = [404, {}] as Reply, order = 0 } = {},
) {
  let asked = 0
  let askedReason = 0
  const { unix } = await listening(t, ({ url }) => {
    const withReason = url?.includes('?reason') === true
    if (withReason) askedReason += 1
    const reply = withReason ? reason : replies[Math.min(asked++, replies.length - 1)]!
    return typeof reply === 'string' ? reply : [reply[0], { id: 'srv-a', ...(reply[1] as object) }]
  })
  const result = await waitForInstance({ operator: unix, id: 'srv-a', revision: 7, order, timeoutMs })
  return { result, asked, askedReason }
}

t.test('the wait ends as soon as guests get the revision, or a later one', async (t) => {
  t.same(await waited(t, [[200, { revision: 7 }]]), {
    result: { kind: 'answers', revision: 7 },
    asked: 1,
    askedReason: 0,
  })
  t.match(await waited(t, [[200, { revision: 9 }]]), { result: { kind: 'answers', revision: 9 } })
})

t.test('until then the wait asks again, whatever the daemon answers', async (t) => {
  const replies: Reply[] = [
    'reset',
    [503, {}],
    [404, { revision: null }],
    [200, { revision: 6 }],
    [409, { revision: 7, reason: 'the firewall has not admitted the guest yet' }],
    [200, { revision: 7 }],
  ]
  t.same(await waited(t, replies), { result: { kind: 'answers', revision: 7 }, asked: 6, askedReason: 0 })
})

t.test('a revision whose guest can never start ends the wait at once; an earlier one does not', async (t) => {
  t.match(await waited(t, [[409, { revision: 7, reason: 'no link', final: true }]]), {
    result: { kind: 'impossible', revision: 7, reason: 'no link' },
    asked: 1,
  })
  t.match(
    await waited(t, [
      [409, { revision: 6, reason: 'no link', final: true }],
      [200, { revision: 7 }],
    ]),
    { result: { kind: 'answers' }, asked: 2 },
  )
})

t.test('a place in the order decides, whatever the revision', async (t) => {
  t.match(
    await waited(
      t,
      [
        [200, { revision: 8 }],
        [200, { revision: 7, order: 20 }],
        [409, { revision: 7, order: 20, reason: 'no link', final: true }],
        [200, { revision: 6, order: 21 }],
      ],
      { order: 21 },
    ),
    { result: { kind: 'answers', revision: 6 }, asked: 4 },
  )
  t.match(await waited(t, [[409, { revision: 6, order: 21, reason: 'no link', final: true }]], { order: 21 }), {
    result: { kind: 'impossible' },
  })
})

t.test('when the time of a wait is over, the result says what the daemon answered', async (t) => {
  const cases: [Reply, object][] = [
    [[200, { revision: 6 }], { revision: 6, reason: 'it serves revision 6' }],
    [[404, { revision: null }], { revision: undefined, reason: 'it does not know the instance' }],
    [[409, { revision: 7, reason: 'no firewall' }], { revision: undefined, reason: 'no firewall' }],
    [[500, {}], { revision: undefined, reason: 'it answered with status 500' }],
    ['reset', { revision: undefined, reason: 'it cannot be reached: socket hang up' }],
    ['silent', { revision: undefined, reason: 'it does not answer' }],
  ]
  for (const [reply, result] of cases)
    t.same((await waited(t, [reply], { timeoutMs: 1_000, reason: [500, {}] })).result, { kind: 'timeout', ...result })
})

t.test('when the time of a wait is over, the daemon is asked for its reason, once', async (t) => {
  const { result, askedReason } = await waited(t, [[404, { revision: null }]], {
    timeoutMs: 1_000,
    reason: [404, { revision: null, reason: 'the store has no record of srv-a' }],
  })
  t.same(
    [result, askedReason],
    [{ kind: 'timeout', revision: undefined, reason: 'the store has no record of srv-a' }, 1],
  )
  const held = await waited(t, [[200, { revision: 6 }]], {
    timeoutMs: 1_000,
    reason: [200, { revision: 6, reason: 'its record is faulty' }],
  })
  t.same(held.result, { kind: 'timeout', revision: 6, reason: 'it has revision 6; its record is faulty' })
})
