/**
 * Runs the daemon's part of `npm run fuzz`: sends random input to a daemon and to the parsers, checks the results and
 * prints a report. As root, it also sends token requests in pieces through the firewall (cuts.ts).
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { fuzzCuts } from './cuts.ts'
import { startFuzzHost } from './host.ts'
import { startPublisher } from './publisher.ts'
import { fuzzFiles, fuzzRecords, type RunReport } from './pure.ts'
import { fuzzSockets } from './sockets.ts'
import { everyCut } from './cuts.ts'
import { randomCuts } from './cuts.ts'

/** The settings of a run, as its command line has them. */
export interface FuzzRun {
  readonly seed: number
  readonly requests: number
  readonly index?: number
}

/** How many of 10,000 connections stay open until the daemon closes them. */
const HOLDS = 60

/** `index`: sends only this input on a socket. Returns whether there were no failures. */
export async function fuzzDaemonAndReport({ seed, requests, index }: FuzzRun): Promise<boolean> {
  const started = performance.now()
  const directory = mkdtempSync(join(tmpdir(), 'imds-fuzz-'))
  const host = await startFuzzHost(directory)
  const publisher = index === undefined ? startPublisher(host, seed) : undefined
  const sockets = await fuzzSockets(host, { seed, requests, holds: HOLDS, ...(index !== undefined && { index }) })
  const published = (await publisher?.stop()) ?? { written: 0, failures: [] }
  const problems = await host.problems()
  await host.stop()
  rmSync(directory, { recursive: true })
  const pure: Readonly<Record<string, RunReport>> =
    index === undefined
      ? {
          records: fuzzRecords(seed, requests / 10),
          files: await fuzzFiles(seed, requests / 20),
          ...(withoutNamespaces() === false && { cuts: await cutTokens(seed, requests) }),
        }
      : {}

  const failures = [
    ...sockets.failures,
    ...published.failures,
    ...problems,
    ...Object.values(pure).flatMap((report) => report.failures),
  ]
  for (const failure of new Set(failures)) console.log(`\n${failure}`)
  const list = (counts: ReadonlyMap<string | number, number>) =>
    [...counts]
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, count]) => `${key}: ${count}`)
      .join(', ')
  const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MiB`
  console.log(`\nsockets: ${sockets.tried} inputs of ${mib(sockets.bytes)} (${list(sockets.families)})`)
  console.log(
    `responses: ${list(sockets.statuses)}; ${sockets.resets} connections reset by the daemon; memory grew by ${mib(sockets.grew.heap)} of heap, ${mib(sockets.grew.resident)} resident`,
  )
  console.log(`meanwhile ${published.written} mutated files were published`)
  for (const [kind, { tried, good }] of Object.entries(pure))
    console.log(`${kind}: ${tried} tried, ${good} of them valid`)
  const all = sockets.tried + published.written + Object.values(pure).reduce((sum, { tried }) => sum + tried, 0)
  console.log(
    `\n${all} inputs tried with seed ${seed} in ${Math.round((performance.now() - started) / 1000)} s; ${failures.length === 0 ? 'no failures' : `${new Set(failures).size} failures`}`,
  )
  return failures.length === 0
}

async function cutTokens(seed: number, requests: number): Promise<RunReport> {
  const ends: (() => unknown)[] = []
  try {
    return await fuzzCuts(
      {
        teardown: (end) => ends.unshift(end),
      },
      [...everyCut(true), ...randomCuts(seed, requests / 50)],
      Infinity,
    )
  } finally {
    for (const end of ends) await end()
  }
}
