/**
 * Runs `npm run fuzz`: sends random input to a daemon, checks the responses, the process, its log and its memory, and
 * prints a report.
 *
 *   --seed N      repeats the inputs of an earlier run; the default is another seed for each run
 *   --requests N  the number of inputs (default 100,000)
 *   --index N     sends only one input, and prints all of it
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { startFuzzHost } from './host.ts'
import { fuzzSockets } from './sockets.ts'

/** How many of 10,000 connections stay open until the daemon closes them. */
const HOLDS = 60

const { values } = parseArgs({
  options: { seed: { type: 'string' }, requests: { type: 'string' }, index: { type: 'string' } },
})
const seed = Number(values.seed ?? Date.now() % 1_000_000)
const requests = Number(values.requests ?? 100_000)
const index = values.index === undefined ? undefined : Number(values.index)
if (![seed, requests, index ?? 0].every(Number.isSafeInteger))
  throw new Error('--seed, --requests and --index must be whole numbers')
console.log(`seed ${seed}`)

const directory = mkdtempSync(join(tmpdir(), 'imds-fuzz-'))
const host = await startFuzzHost(directory)
const sockets = await fuzzSockets(host, { seed, requests, holds: HOLDS, ...(index !== undefined && { index }) })
await host.stop()
rmSync(directory, { recursive: true })

const failures = new Set(sockets.failures)
for (const failure of failures) console.log(`\n${failure}`)
const list = (counts: ReadonlyMap<string | number, number>) =>
  [...counts]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, count]) => `${key}: ${count}`)
    .join(', ')
const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MiB`
console.log(`
${sockets.tried} inputs of ${mib(sockets.bytes)} (${list(sockets.families)})
responses: ${list(sockets.statuses)}; ${sockets.resets} connections reset by the daemon
memory grew by ${mib(sockets.grew.heap)} of heap, ${mib(sockets.grew.resident)} resident
${failures.size} failures`)
process.exitCode = failures.size === 0 ? 0 : 1
