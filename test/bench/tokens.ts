/**
 * The cost of session tokens and of the fair share.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Share } from '../../src/imdsd/guest/share.ts'
import { request } from 'node:http'
import type { Part } from './bench.ts'
import { idOf, populate } from './population.ts'
import { startBare, startImds } from './processes.ts'
import { disturbance, medianOf, ratio, takeTurns } from './rounds.ts'

const INSTANCES = 500
const PATH = '/latest/meta-data/instance-id'
const TTL = 'X-aws-ec2-metadata-token-ttl-seconds'
const SPENDS = 5_000_000

/**
 * The rate of requests with a required token, the rate of minting tokens, and the time of one check of a guest's share.
 */
export const tokens: Part = async ({ built, redisUrl, effort }) => {
  const env = await populate(redisUrl, 'tokens', INSTANCES, { options: { httpTokens: 'required' } })
  const bare = await startBare(built, idOf(0))
  const imds = await startImds(built, env, INSTANCES)
  const mint = join(built.directory, 'mint.lua')
  writeFileSync(mint, `wrk.method = "PUT"\nwrk.headers["${TTL}"] = "21600"\n`)
  try {
    const token = await tokenOf(imds.port)
    const rows: string[][] = []
    for (const [title, path, wrkOptions, aim] of [
      ['GET with a required token', PATH, ['-H', `X-aws-ec2-metadata-token: ${token}`], '>= 0.8'],
      ['PUT for a token', '/latest/api/token', ['-s', mint], ''],
    ] as const) {
      const [bareRounds = [], imdsRounds = []] = await takeTurns([bare, imds], path, 'keep-alive', effort, wrkOptions)
      rows.push([
        title,
        medianOf(bareRounds, 'requestsPerSecond').toFixed(0),
        medianOf(imdsRounds, 'requestsPerSecond').toFixed(0),
        ratio(imdsRounds, bareRounds, 'requestsPerSecond').toFixed(3),
        aim,
        ratio(imdsRounds, bareRounds, 'p99Ms').toFixed(2),
        disturbance([...bareRounds, ...imdsRounds]),
      ])
    }
    return [
      {
        title: 'Session tokens, keep-alive',
        columns: ['', 'bare, requests/s', 'imds, requests/s', 'ratio', 'aim', 'ratio of p99', 'other load'],
        rows,
        notes: [
          `One check of a guest's share takes ${spendNanoseconds().toFixed(0)} ns (mean of ${String(SPENDS)}, in this process).`,
        ],
      },
    ]
  } finally {
    await Promise.all([bare.stop(), imds.stop()])
  }
}

function tokenOf(port: number): Promise<string> {
  return new Promise((resolve, reject) => {
    request(
      { host: '127.0.0.1', port, path: '/latest/api/token', method: 'PUT', headers: { [TTL]: '21600' } },
      (response) => {
        response
          .setEncoding('latin1')
          .toArray()
          .then((chunks) => {
            resolve(chunks.join(''))
          }, reject)
      },
    )
      .on('error', reject)
      .end()
  })
}

function spendNanoseconds(): number {
  const share = new Share({ burst: 600, perSecond: 100, connections: 64 })
  const guest = { paths: 100 }
  const startedMs = performance.now()
  for (let i = 0; i < SPENDS; i++) share.spend(startedMs + i / 1000, guest)
  return ((performance.now() - startedMs) / SPENDS) * 1e6
}
