/** The cost of session tokens. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { request } from 'node:http'
import type { Part } from './bench.ts'
import { idOf, populate } from './population.ts'
import { startBare, startImds } from './processes.ts'
import { medianOf, ratio, takeTurns } from './rounds.ts'

const INSTANCES = 500
const PATH = '/latest/meta-data/instance-id'
const TTL = 'X-aws-ec2-metadata-token-ttl-seconds'

/** The rate of requests with a required token, and the rate of minting tokens. */
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
      ])
    }
    return [
      {
        title: 'Session tokens, keep-alive',
        columns: ['', 'bare, requests/s', 'imds, requests/s', 'ratio', 'aim', 'ratio of p99'],
        rows,
        notes: [],
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
          .then((chunks) => resolve(chunks.join('')), reject)
      },
    )
      .on('error', reject)
      .end()
  })
}
