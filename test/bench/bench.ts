/**
 * The command line of the benchmarks.
 *
 *   npm run bench [-- PART... [--quick] [--old TREE]]
 *
 * They measure and do not test: no time makes them fail. Most figures are ratios to a bare server that is measured in
 * the same run. `--quick` takes less time and is less exact. `--old`: the tree that `compare` compares this one with.
 */
import { parseArgs } from 'node:util'
import { startRedis } from '../support/redis/redis.ts'
import { build, clean, moveToLoadCore, type Built } from './processes.ts'
import { compare } from './compare.ts'
import { creators } from './creators.ts'
import { firewall } from './firewall.ts'
import { flood } from './flood.ts'
import { launch } from './launch.ts'
import { publish } from './publish.ts'
import { rate } from './rate.ts'
import { formatText, machine, type Table } from './report.ts'
import { resync } from './resync.ts'
import type { Effort } from './rounds.ts'
import { stalls } from './stalls.ts'
import { start } from './start.ts'
import { views } from './views.ts'

/** One benchmark: measures, and returns its tables. `old`: another worktree. */
export type Part = (bench: {
  readonly built: Built
  readonly redisUrl: string
  readonly effort: Effort
  readonly old: string | undefined
}) => Promise<readonly Table[]>

const PARTS: Readonly<Record<string, Part>> = {
  rate,
  flood,
  views,
  publish,
  start,
  resync,
  firewall,
  launch,
  stalls,
  compare,
  creators,
}
const FULL: Effort = { seconds: 5, processes: 10 }
const QUICK: Effort = { seconds: 2, processes: 3 }

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: { quick: { type: 'boolean', default: false }, old: { type: 'string' } },
})
const names = positionals.length > 0 ? positionals : Object.keys(PARTS)
const unknown = names.filter((name) => !(name in PARTS))
if (unknown.length > 0) {
  console.error(`bench: no such part: ${unknown.join(', ')}. There are ${Object.keys(PARTS).join(', ')}.`)
  process.exit(2)
}

moveToLoadCore()
const built = build()
const redis = await startRedis(undefined)
try {
  console.log(`${machine()}\n`)
  for (const name of names) {
    const effort = options.quick ? QUICK : FULL
    for (const table of await PARTS[name]!({ built, redisUrl: redis.url, effort, old: options.old }))
      console.log(formatText(table))
  }
} finally {
  await redis.stop()
  clean(built)
}
