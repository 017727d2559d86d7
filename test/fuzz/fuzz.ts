/**
 * Runs `npm run fuzz`: `npm run fuzz -- daemon` only the daemon's part (daemon.ts), `-- api` only that of imds-api
 * (imds-api/main.ts). Each prints a report.
 *
 *   --seed N      repeats the inputs of an earlier run; the default is another seed for each run
 *   --requests N  the number of inputs on sockets of the daemon (default 100,000); all others are proportional. With
 *                 `api`: the number of requests to it (default 20,000)
 *   --index N     sends only one input on a socket, or one request to the API, and prints all of it
 */
import { parseArgs } from 'node:util'
import { fuzzApiAndReport } from './imds-api/main.ts'
import { fuzzDaemonAndReport } from './daemon.ts'

const API_SHARE = 0.2

const { values, positionals } = parseArgs({
  options: { seed: { type: 'string' }, requests: { type: 'string' }, index: { type: 'string' } },
  allowPositionals: true,
})
const [part] = positionals
const seed = Number(values.seed ?? Date.now() % 1_000_000)
const requests = Number(values.requests ?? (part === 'api' ? 20_000 : 100_000))
const index = values.index === undefined ? undefined : Number(values.index)
if (![seed, requests, index ?? 0].every(Number.isSafeInteger))
  throw new Error('--seed, --requests and --index must be whole numbers')
if (part !== undefined && part !== 'daemon' && part !== 'api') throw new Error('the part must be daemon or api')
console.log(`seed ${seed}`)

const run = { seed, requests, ...(index !== undefined && { index }) }
const isDaemonGood = part === 'api' || (await fuzzDaemonAndReport(run))
const isApiGood =
  part === 'daemon' ||
  (part === undefined && index !== undefined) ||
  (await fuzzApiAndReport({ ...run, requests: part === 'api' ? requests : Math.ceil(requests * API_SHARE) }))
process.exitCode = isDaemonGood && isApiGood ? 0 : 1
