/**
 * The command line of the benchmarks.
 *
 *   npm run bench [-- PART... [--markdown] [--quick] [--main FILE] [--before FILE]]
 *
 * They measure and do not test: no time makes them fail. Most figures are ratios to a bare server that is measured in
 * the same run. `--quick` takes less time and is less exact. `--main` measures another build of the daemon.
 * `--before` is src/imds-api/main.ts of an older version, with which `lists` compares.
 */
import { parseArgs } from 'node:util'
import { startRedis } from '../support/redis/redis.ts'
import { build, clean, moveToLoadCore, type Built } from './processes.ts'
import { api } from './api.ts'
import { dearest } from './dearest.ts'
import { events } from './events.ts'
import { files } from './files.ts'
import { flood } from './flood.ts'
import { lists } from './lists.ts'
import { load } from './load.ts'
import { page } from './page.ts'
import { importExport } from './import.ts'
import { outbox } from './outbox.ts'
import { publish } from './publish.ts'
import { rate } from './rate.ts'
import { formatMarkdown, formatText, machine, type Table } from './report.ts'
import { resync } from './resync.ts'
import type { Effort } from './rounds.ts'
import { scale } from './scale.ts'
import { stalls } from './stalls.ts'
import { start } from './start.ts'
import { tokens } from './tokens.ts'
import { views } from './views.ts'
import { waiting } from './waiting.ts'

/** One benchmark: measures, and returns its tables. */
export type Part = (bench: {
  readonly built: Built
  readonly redisUrl: string
  readonly effort: Effort
  /** Of an older imds-api. */
  readonly before: string | undefined
}) => Promise<readonly Table[]>

const PARTS: Readonly<Record<string, Part>> = {
  rate,
  tokens,
  flood,
  dearest,
  views,
  publish,
  waiting,
  import: importExport,
  start,
  resync,
  files,
  stalls,
  page,
  api,
  lists,
  load,
  outbox,
  events,
  scale,
}
const FULL: Effort = { warmUpSeconds: 5, rounds: 3, seconds: 5 }
const QUICK: Effort = { warmUpSeconds: 2, rounds: 3, seconds: 2 }

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    markdown: { type: 'boolean', default: false },
    quick: { type: 'boolean', default: false },
    main: { type: 'string' },
    before: { type: 'string' },
  },
})
const names = positionals.length > 0 ? positionals : Object.keys(PARTS)
const unknown = names.filter((name) => !(name in PARTS))
if (unknown.length > 0) {
  console.error(`bench: no such part: ${unknown.join(', ')}. There are ${Object.keys(PARTS).join(', ')}.`)
  process.exit(2)
}

moveToLoadCore()
const built = build(options.main)
const redis = await startRedis(undefined)
try {
  console.log(`${machine()}\n`)
  for (const name of names) {
    const tables = await PARTS[name]!({
      built,
      redisUrl: redis.url,
      effort: options.quick ? QUICK : FULL,
      before: options.before,
    })
    for (const table of tables) console.log(options.markdown ? formatMarkdown(table) : formatText(table))
  }
} finally {
  await redis.stop()
  clean(built)
}
