/** Runs the API's part of `npm run fuzz` and prints a report. */
import { startApiHost } from './host.ts'
import { fuzzApi, type ApiRun } from './run.ts'

/** Returns whether there were no failures. */
export async function fuzzApiAndReport(run: ApiRun): Promise<boolean> {
  const started = performance.now()
  const ends: (() => unknown)[] = []
  try {
    const host = await startApiHost({
      teardown: (end) => ends.unshift(end),
    })
    const { tried, statuses, unsuccessful, heapGrew, failures } = await fuzzApi(host, run)
    for (const failure of failures) console.log(`\n${failure}`)
    const counts = [...statuses].sort(([a], [b]) => a - b).map(([status, count]) => `${status}: ${count}`)
    console.log(`\nresponses of imds-api: ${counts.join(', ')}; heap grew by ${(heapGrew / 2 ** 20).toFixed(1)} MiB`)
    if (unsuccessful.length > 0) console.log(`operations without a success: ${unsuccessful.join(', ')}`)
    const seconds = Math.round((performance.now() - started) / 1000)
    console.log(
      `\n${tried} requests tried with seed ${run.seed} in ${seconds} s; ${failures.length === 0 ? 'no failures' : `${failures.length} failures`}`,
    )
    return failures.length === 0
  } finally {
    for (const end of ends) await end()
  }
}
