/**
 * H1 of the contract over real sockets: many held requests, their time limits, closed connections, and a stop.
 * test/contract/waiting.test.ts has the rules.
 */
import { spawn } from 'node:child_process'
import { Agent, get, type IncomingMessage } from 'node:http'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import t from 'tap'
import type { Publisher } from '../../src/store/open.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'
import { executed } from '../tools/documents.ts'

const GUESTS = 125
const HELD_EACH = 8
const TAG = '/latest/meta-data/tags/instance/state'
const WAIT = `${TAG}?wait_for_change=true`

const addressOf = (guest: number) => `127.0.1.${guest + 1}`

function recordOf(guest: number, revision: number, state: string): object {
  return anInstance({
    id: `srv-${guest}`,
    revision,
    interfaces: loopback(1, { ipv4Addresses: [`${addressOf(guest)}/8`] }),
    tags: { state },
    options: { instanceMetadataTags: 'enabled' },
  })
}

let store: Publisher
let daemon: TestDaemon
t.before(async () => {
  const url = `file:${testDirectory(t)}`
  store = await openTestStore(t, { url })
  for (let guest = 0; guest < GUESTS; guest++) await store.put(recordOf(guest, 1, 'old'))
  daemon = await startDaemon(t, { IMDS_STORE: url })
  await until(async () => (await daemon.metric('imds_view_instances')) === GUESTS, 'all instances')
})

interface Answer {
  readonly status: number | undefined
  readonly headers: IncomingMessage['headers']
  readonly body: string
}

/** Sends a request of a guest on a connection of its own. */
function ask(guest: number, path: string, headers: Record<string, string> = {}, agent?: Agent): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const options = {
      host: '127.0.0.1',
      port: daemon.guestPort,
      localAddress: addressOf(guest),
      path,
      headers,
      agent: agent ?? new Agent({ keepAlive: true }),
    }
    get(options, (response) => {
      text(response).then((body) => resolve({ status: response.statusCode, headers: response.headers, body }), reject)
    }).on('error', reject)
  })
}

const heldAre = (count: number) =>
  until(async () => (await daemon.metric('imds_held_requests')) === count, `${count} held requests`)

t.test('H1: each of 1,000 held requests is answered by a change of its own instance, and by no other', async (t) => {
  const answers: string[][] = Array.from({ length: GUESTS }, () => [])
  const all = answers.flatMap((got, guest) =>
    Array.from({ length: HELD_EACH }, async () => got.push((await ask(guest, WAIT)).body)),
  )
  await heldAre(GUESTS * HELD_EACH)
  const isOdd = (guest: number) => guest % 2 === 1
  for (let guest = 0; guest < GUESTS; guest++) if (isOdd(guest)) await store.put(recordOf(guest, 2, `new ${guest}`))
  await until(() => answers.flat().length === Math.floor(GUESTS / 2) * HELD_EACH, 'the answers of the changed ones')
  await heldAre(Math.ceil(GUESTS / 2) * HELD_EACH)
  t.same(
    answers,
    answers.map((_got, guest) => (isOdd(guest) ? Array.from({ length: HELD_EACH }, () => `new ${guest}`) : [])),
  )
  for (let guest = 0; guest < GUESTS; guest++) if (!isOdd(guest)) await store.put(recordOf(guest, 2, `new ${guest}`))
  await Promise.all(all)
  t.same(
    answers,
    answers.map((_got, guest) => Array.from({ length: HELD_EACH }, () => `new ${guest}`)),
  )
})

t.test('H1: a held request gets the present value at its timeout, and its connection stays open', async (t) => {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  const answer = await ask(0, `${WAIT}&timeout_sec=1`, {}, agent)
  t.match(answer, { status: 200, body: 'new 0', headers: { connection: 'keep-alive' } })
  t.match(await ask(0, TAG, {}, agent), { status: 200 })
  t.equal(Object.values(agent.freeSockets).flat().length, 1)
  agent.destroy()
})

t.test('H1: the loop in docs/guests.md prints the tags at once and after each change', async (t) => {
  const home = testDirectory(t, { '.curlrc': `interface = ${addressOf(5)}\n` })
  const loop = executed('docs/guests.md', 'follow').replace(
    'http://169.254.169.254',
    `http://127.0.0.1:${daemon.guestPort}`,
  )
  const shell = spawn('sh', ['-c', loop], { env: { ...process.env, CURL_HOME: home }, detached: true })
  const lines = createInterface(shell.stdout)[Symbol.asyncIterator]()
  const next = async () => JSON.parse(String((await lines.next()).value)) as unknown
  try {
    t.same(await next(), { instance: { state: 'new 5' } })
    for (const revision of [3, 4]) {
      await heldAre(1)
      await store.put(recordOf(5, revision, String(revision)))
      t.same(await next(), { instance: { state: String(revision) } })
    }
  } finally {
    process.kill(-shell.pid!)
  }
})

t.test('H1: a daemon that stops answers held requests with the present value and Connection: close', async (t) => {
  const held = Promise.all([2, 3, 4].map((guest) => ask(guest, WAIT)))
  await heldAre(3)
  await daemon.stop()
  const answers = await held
  t.match(
    answers,
    [2, 3, 4].map((guest) => ({ status: 200, body: `new ${guest}`, headers: { connection: 'close' } })),
  )
})
