/**
 * `imdsctl put` with many records: order, back pressure, and a store that is lost. test/unit/imdsctl/ has its input,
 * refusals and exit statuses.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { Publisher } from '../../src/store/open.ts'
import { until } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { imdsctlCommand } from '../support/programs/imdsctl.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'
import { programEnvironment } from '../support/programs/imds.ts'

const redis = await startRedis(t)

async function aStore(t: Test): Promise<Publisher> {
  await redis.client.flushall()
  await redis.client.set('imds:{gb1}:announcement:hv1', '{}') // as if a daemon had announced it
  return await openTestStore(t, { url: redis.url, region: 'gb1' })
}

const ENV = { IMDS_STORE: redis.url, IMDS_REGION: 'gb1' }
/** Starts imdsctl put, which reads lines from its standard input. */
function startPut(t: Test) {
  const [program, ...args] = imdsctlCommand('put', '-')
  const child = spawn(program!, args, { env: { ...programEnvironment(), ...ENV } })
  t.teardown(() => child.kill('SIGKILL'))
  const seen = { output: '' }
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      seen.output += text
    })
  return { child, seen }
}
const nic = (n: number, address = `10.0.${n >> 6}.${(n & 63) * 4 + 2}/30`) => [
  { id: `int-a${n}`, macAddress: '02:24:19:00:00:ee', ipv4Addresses: [address] },
]
const record = (n: number, change: Record<string, unknown> = {}) =>
  anInstance({ id: `srv-a${n}`, interfaces: nic(n), ...change })
const lines = (...values: unknown[]) => values.map((value) => `${JSON.stringify(value)}\n`).join('')

t.test('imdsctl put stops reading its input while the store is busy', async (t) => {
  await aStore(t)
  const { child, seen } = startPut(t)
  child.stdin.write(lines(record(0)))
  await until(() => seen.output.includes('published srv-a0'), 'the first record')
  await redis.client.call('CLIENT', 'PAUSE', '60000', 'WRITE')
  const count = 2000
  const userDataBase64 = Buffer.alloc(16_000).toString('base64')
  child.stdin.end(lines(...Array.from({ length: count }, (_, i) => ({ record: record(i + 1), userDataBase64 }))))
  const isStill = async () => {
    const before = child.stdin.writableLength
    await sleep(200)
    return child.stdin.writableLength === before
  }
  await until(isStill, 'the end of the reading')
  t.ok(child.stdin.writableLength > 30_000_000, `${child.stdin.writableLength} of ${count * 22_000} bytes wait`)
  await redis.client.call('CLIENT', 'UNPAUSE')
  await once(child, 'close')
  t.match(seen.output, /^2001 records, 2001 published$/m)
})

t.test('imdsctl put publishes each line as it arrives, and exits with 69 if the store is lost', async (t) => {
  await aStore(t)
  const { child, seen } = startPut(t)
  child.stdin.on('error', () => undefined)
  for (const n of [1, 2]) {
    child.stdin.write(lines(record(n)))
    await until(() => seen.output.includes(`published srv-a${n}`), `record ${n}`)
  }
  await redis.kill()
  t.teardown(() => redis.restart())
  child.stdin.write(lines(record(3), record(4), record(5)))
  await once(child, 'close') // though its input is still open
  t.equal(child.exitCode, 69)
  t.match(seen.output, /^imdsctl: -:3: srv-a3: cannot use the store: .*ECONNREFUSED/m)
  t.match(seen.output, /^imdsctl: stopped: the store cannot be used, and the remaining records were not tried$/m)
  t.match(seen.output, /^\d records, 2 published, \d failed$/m)
})
