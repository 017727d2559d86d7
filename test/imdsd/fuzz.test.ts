/**
 * Invariant 6 under invalid input: random bytes from hundreds of addresses. Each connection is checked, and at the end the
 * process, its log, its metrics and its memory. IMDS_TEST_LONG=1 sends 100,000 inputs of a new seed.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { diceOf, escaped } from '../fuzz/dice.ts'
import { foreignCanaries, populate } from '../fuzz/guests.ts'
import { inputOf, MARK, TOKEN } from '../fuzz/inputs.ts'
import { checkAnswers } from '../fuzz/oracle.ts'
import { planOf, send } from '../fuzz/send.ts'
import { exchange } from '../support/fixtures/socket.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { collectable } from '../support/programs/garbage.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

const [SEED, INPUTS] = process.env['IMDS_TEST_LONG'] === '1' ? [Date.now() % 1_000_000, 100_000] : [4, 2_500]
const [GUESTS, CLIENTS] = [320, 48]
const MAX_GROWTH = 20 * 2 ** 20
/** The share of the inputs that is sent before memory is first measured. */
const WARM_UP = 0.2
/** File descriptors that are not connections but may be open at a check, such as a file of the journal. */
const SPARE_DESCRIPTORS = 3

t.test(`invariant 6: fuzzed guests cause no wrong response, crash, growth or leak (seed ${SEED})`, async (t) => {
  const directory = testDirectory(t)
  const url = `file:${directory}/store`
  const errors = join(directory, 'errors')
  const guests = await populate(await openTestStore(t, { url }), GUESTS)
  const { env, within, collect } = await collectable(errors)
  const daemon = await startDaemon(t, { IMDS_STORE: url, ...env }, within)
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'the daemon to have read its store')
  const mint = 'PUT /latest/api/token HTTP/1.0\r\nX-aws-ec2-metadata-token-ttl-seconds: 21600\r\n\r\n'
  const { body: token } = await exchange(daemon.guestPort, mint, { localAddress: guests[0]!.address })
  const descriptors = () => readdirSync(`/proc/${String(daemon.process.pid)}/fd`).length
  await sleep(500) // until the journal is written
  const idle = descriptors()
  const failures: string[] = []
  const statuses = new Map<number, number>()

  /** Sends inputs, and measures memory when all connections are closed and the garbage is collected. */
  const run = async (from: number, to: number) => {
    let next = from
    const client = async () => {
      while (next < to && failures.length < 10 && daemon.process.exitCode === null) {
        const n = next++
        const dice = diceOf(SEED, n)
        const guest = dice.pick(guests)
        const made = inputOf(dice)
        const input = { ...made, bytes: made.bytes.replaceAll(TOKEN, token) }
        const sent = await send(daemon.guestPort, guest.address, input.bytes, planOf(dice, input.bytes.length))
        const checked = checkAnswers(input, guest, sent)
        for (const status of checked.statuses) statuses.set(status, (statuses.get(status) ?? 0) + 1)
        if (checked.wrong === undefined) continue
        const shown = (text: string) => escaped(text.slice(0, 3_000))
        const what = `input ${n} of seed ${SEED}, from ${guest.address}, ${guest.role}: ${checked.wrong}`
        failures.push(
          `${what}\n  plan: ${JSON.stringify(sent.plan)}\n  sent: ${shown(input.bytes)}\n  got: ${shown(sent.text)}`,
        )
      }
    }
    await Promise.all(Array.from({ length: CLIENTS }, client))
    await until(() => descriptors() <= idle + SPARE_DESCRIPTORS, 'the connections to be closed', 25_000)
    for (let n = 0; n < 2; n++) {
      await collect()
      await sleep(200)
    }
    return Promise.all(
      ['nodejs_heap_size_used_bytes', 'process_resident_memory_bytes'].map((name) => daemon.metric(name)),
    )
  }
  const before = await run(0, INPUTS * WARM_UP)
  const after = await run(INPUTS * WARM_UP, INPUTS)
  t.same(failures, [])
  for (const [i, bytes] of after.entries())
    t.ok(bytes - before[i]! < MAX_GROWTH, `it grew by ${bytes - before[i]!} bytes`)
  for (const status of [200, 400, 401, 403, 404, 405, 503])
    t.ok((statuses.get(status) ?? 0) > 10, `some responses have the status ${status}`)

  const leaks = (line: string) => foreignCanaries(line, '').length > 0 || line.includes(MARK) || line.includes(token)
  const log = daemon.log.map((line) => JSON.stringify(line))
  t.same(
    log.filter((line) => leaks(line) || /"level":"(?:error|fatal)"/.test(line)),
    [],
    'the log',
  )
  const metrics = (await daemon.operator('/metrics')).body.toString().split('\n')
  t.same(
    metrics.filter((line) => leaks(line) || line.includes('reason="internal-error"')),
    [],
    'the metrics',
  )
  const ofDebugger = /^(?:|Debugger .*|For help, see: .*|Starting inspector .*)$/
  t.same(
    readFileSync(errors, 'utf8')
      .split('\n')
      .filter((line) => !ofDebugger.test(line)),
    [],
    'standard error',
  )
  t.equal(await daemon.stop(), 0)
})
