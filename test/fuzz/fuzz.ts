/**
 * `npm run fuzz`: bad input by the hundred thousand, and what came of it.
 *
 * With root, requests for session tokens are cut in pieces too, and sent through the firewall from a container (cuts.ts).
 *
 *   --seed N      the same inputs again; without it, another seed each time
 *   --requests N  inputs on sockets (100,000); records, files and snapshots come in proportion
 *   --index N     one input on a socket alone, with all of its bytes
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { everyCut, fuzzCuts, randomCuts } from './cuts.ts'
import { startFuzzHost } from './host.ts'
import { startPublisher } from './publisher.ts'
import { fuzzFiles, fuzzRecords, fuzzSnapshots, type PureReport } from './pure.ts'
import { fuzzSockets } from './sockets.ts'

const { values } = parseArgs({ options: { seed: { type: 'string' }, requests: { type: 'string', default: '100000' }, index: { type: 'string' } } })
const seed = Number(values.seed ?? Date.now() % 1_000_000)
const requests = Number(values.requests)
const index = values.index === undefined ? undefined : Number(values.index)
if (![seed, requests, index ?? 0].every(Number.isSafeInteger)) throw new Error('--seed, --requests and --index are whole numbers')
console.log(`seed ${String(seed)}`)

/** Of 10,000 connections, this many are held open until the daemon ends them. */
const HOLDS = 60

const started = performance.now()
const directory = mkdtempSync(join(tmpdir(), 'imds-fuzz-'))
const host = await startFuzzHost(directory)
const publisher = index === undefined ? startPublisher(host, seed) : undefined
const sockets = await fuzzSockets(host, { seed, requests, holds: HOLDS, ...index !== undefined && { index } })
const published = await publisher?.stop() ?? { written: 0, failures: [] }
const late = await host.refusalLog()
await host.stop()
rmSync(directory, { recursive: true })
const pure: Readonly<Record<string, PureReport>> = index === undefined
  ? {
      records: fuzzRecords(seed, requests / 10), files: await fuzzFiles(seed, requests / 20), snapshots: await fuzzSnapshots(seed, requests / 20),
      ...withoutNamespaces() === false && { cuts: await cutTokens() },
    }
  : {}

const failures = [...sockets.failures, ...published.failures, ...late, ...Object.values(pure).flatMap((report) => report.failures)]
for (const failure of new Set(failures)) console.log(`\n${failure}`)
const list = (counts: ReadonlyMap<string | number, number>) => [...counts].sort(([a], [b]) => a < b ? -1 : 1).map(([key, count]) => `${String(key)}: ${String(count)}`).join(', ')
const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MiB`
console.log(`\nsockets: ${String(sockets.tried)} inputs of ${mib(sockets.bytes)} (${list(sockets.families)})`)
console.log(`answers: ${list(sockets.statuses)}; ${String(sockets.resets)} connections reset by the daemon; memory grew by ${mib(sockets.grew.heap)} of heap, ${mib(sockets.grew.resident)} resident`)
console.log(`beside them ${String(published.written)} strange files were published`)
for (const [kind, { tried, good }] of Object.entries(pure)) console.log(`${kind}: ${String(tried)} tried, ${String(good)} of them good`)
const all = sockets.tried + published.written + Object.values(pure).reduce((sum, { tried }) => sum + tried, 0)
console.log(`\n${String(all)} inputs tried with seed ${String(seed)} in ${String(Math.round((performance.now() - started) / 1000))} s; ${failures.length === 0 ? 'nothing was found' : `${String(new Set(failures).size)} failures`}`)
process.exitCode = failures.length === 0 ? 0 : 1

async function cutTokens(): Promise<PureReport> {
  const ends: (() => unknown)[] = []
  try {
    return await fuzzCuts({ teardown: (end) => { ends.unshift(end) } }, [...everyCut(true), ...randomCuts(seed, requests / 50)], Infinity)
  } finally {
    for (const end of ends) await end()
  }
}
