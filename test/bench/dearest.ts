/**
 * The most expensive legal requests: the CPU time of each candidate, as a ratio to a plain request of its route in the
 * same round, and the requests that it takes from the share of its guest.
 */
import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { priceOf } from '../../src/imdsd/guest/share.ts'
import { Wire } from '../support/load/wire.ts'
import { IMDSCTL } from '../support/programs/imds.ts'
import { must } from '../support/programs/processes.ts'
import type { Part } from './bench.ts'
import { populate } from './population.ts'
import { cpuSeconds, startImds } from './processes.ts'
import { median } from './report.ts'

const LEAF = '/latest/meta-data/instance-id'
const IDENTITY_TOKEN = '/latest/dynamic/instance-identity/token'
/** A request of at most 16 KiB has so many characters for one candidate. */
const ROOM = 15_500
const CONNECTIONS = 16
/** CPU time is counted in hundredths of a second. */
const REQUESTS_PER_SECOND_OF_EFFORT = 1_000
/** How many candidates of each route are measured again, in rounds. */
const FINALISTS = 5

type Headers = readonly (readonly [name: string, value: string])[]
interface Candidate {
  readonly title: string
  readonly method?: string
  readonly target: string
  readonly headers?: Headers
}

const repeated = (text: string, room = ROOM) => text.repeat(Math.floor(room / text.length))
/** Node refuses some more headers than that. */
const MAX_HEADERS = 1_000
const many = (name: (n: number) => string, value: string): Headers =>
  Array.from({ length: MAX_HEADERS }, (_, n) => [name(n), value])

/** The texts that an attacker would put into a header. */
const TEXTS = [',', 'a,', ', ', '"', '""', '"a",', 'W/"a",', 'x"0123456789012345678901",', '%61', ';', 'a=b;', 'x']
const HEADERS = [
  'If-None-Match',
  'If-Match',
  'X-aws-ec2-metadata-token',
  'X-aws-ec2-metadata-token-ttl-seconds',
  'X-Forwarded-For',
  'Forwarded',
  'User-Agent',
  'Connection',
  'Accept',
  'Accept-Encoding',
  'Cookie',
  'Host',
  'Range',
]
const QUERIES = ['?&', '?&b', '?&a=%61', '?&audience', '?&error_body=fals', '?&recursive=true', '#?', '?%61', '?+']
const PATHS = ['/', '//a', '/a', '/%61', '/%2f', '%61', '%C3%BC', '.', '/..']

const LEAVES: readonly Candidate[] = [
  ...HEADERS.flatMap((name) =>
    TEXTS.map((text) => ({ title: `${name} of ${text}`, target: LEAF, headers: [[name, repeated(text)]] as Headers })),
  ),
  ...QUERIES.map(([mark = '', ...text]) => ({
    title: `query of ${text.join('')}`,
    target: `${LEAF}${mark}${repeated(text.join(''))}`,
  })),
  ...PATHS.map((text) => ({ title: `path of ${text}`, target: `${LEAF}${repeated(text)}` })),
  ...PATHS.filter((text) => text.startsWith('/')).map((text) => ({
    title: `begins with ${text}`,
    target: `${repeated(text)}${LEAF}`,
  })),
  { title: 'many headers', target: LEAF, headers: many((n) => `a${n.toString(36)}`, '') },
  { title: 'many headers of one name', target: LEAF, headers: many(() => 'a', 'b') },
  { title: 'many If-None-Match', target: LEAF, headers: many(() => 'If-None-Match', ',') },
  { title: 'many Cookie', target: LEAF, headers: many(() => 'Cookie', 'a') },
]
const QUESTIONS: readonly Candidate[] = ['&b', '&audience', '&audience=a', '%61', '&a=%61', '&a=+'].map((text) => ({
  title: `audience and ${text}`,
  target: `${IDENTITY_TOKEN}?audience=a${repeated(text)}`,
}))
const PUTS: readonly Candidate[] = TEXTS.map((text) => ({
  title: `TTL of ${text}`,
  method: 'PUT',
  target: '/latest/api/token',
  headers: [['X-aws-ec2-metadata-token-ttl-seconds', repeated(text)]],
}))

/** A plain request of each route, and the candidates. */
const ROUTES: readonly (readonly [plain: Candidate, candidates: readonly Candidate[]])[] = [
  [{ title: 'plain leaf', target: LEAF }, LEAVES],
  [{ title: 'plain identity token', target: `${IDENTITY_TOKEN}?audience=a` }, QUESTIONS],
  [
    {
      title: 'plain PUT',
      method: 'PUT',
      target: '/latest/api/token',
      headers: [['X-aws-ec2-metadata-token-ttl-seconds', '60']],
    },
    PUTS,
  ],
]
export const dearest: Part = async ({ built, redisUrl, effort }) => {
  const keys = mkdtempSync(join(built.directory, 'identity-'))
  await must([process.execPath, IMDSCTL, 'identity', 'init', keys])
  const imds = await startImds(
    built,
    {
      ...(await populate(redisUrl, 'dearest', 1)),
      IMDS_IDENTITY_KEY_FILE: join(keys, 'identity-key.pem'),
      IMDS_IDENTITY_CERT_FILE: join(keys, 'identity-cert.pem'),
      IMDS_IDENTITY_ISSUER: 'https://issuer.example.com',
    },
    1,
  )
  const count = REQUESTS_PER_SECOND_OF_EFFORT * effort.seconds
  const cost = async (candidate: Candidate, requests: number) => {
    const text = format(candidate)
    const wires = await Promise.all(Array.from({ length: CONNECTIONS }, () => Wire.open(imds.port, '127.0.0.1')))
    const before = cpuSeconds(imds.pid)
    await Promise.all(
      wires.map(async (wire) => {
        for (let n = 0; n < requests / CONNECTIONS; n++) {
          if (!wire.isOpen) throw new Error(`${candidate.title}: the connection is closed`)
          await wire.ask(text)
        }
      }),
    )
    const spent = cpuSeconds(imds.pid) - before
    for (const wire of wires) wire.end()
    return (spent / requests) * 1e6
  }
  try {
    const rows: { title: string; micros: number; ratio: number; price: number }[] = []
    for (const [plain, candidates] of ROUTES) {
      await cost(plain, 5 * count)
      const found: { candidate: Candidate; price: number; each: number }[] = []
      for (const candidate of candidates) {
        const price = priceOf(candidate.target, candidate.headers?.flat() ?? [])
        found.push({ candidate, price, each: (await cost(candidate, count)) / price })
      }
      for (const { candidate, price } of found.sort((a, b) => b.each - a.each).slice(0, FINALISTS)) {
        const [micros, ratios]: [number[], number[]] = [[], []]
        for (let round = 0; round < effort.rounds; round++) {
          const plainMicros = await cost(plain, 2 * count)
          micros.push(await cost(candidate, count))
          ratios.push(micros.at(-1)! / plainMicros)
        }
        rows.push({ title: candidate.title, micros: median(micros), ratio: median(ratios), price })
      }
    }
    return [
      {
        title: 'The most expensive legal requests',
        columns: ['', 'CPU µs', 'ratio to a plain one', 'requests of its share', 'ratio for each of these', 'aim'],
        rows: rows.map(({ title, micros, ratio, price }) => [
          title,
          micros.toFixed(0),
          ratio.toFixed(1),
          price.toFixed(1),
          (ratio / price).toFixed(2),
          '<= 3',
        ]),
        notes: [`Searched among ${ROUTES.flatMap(([, candidates]) => candidates).length} requests of 16 KiB.`],
      },
    ]
  } finally {
    await imds.stop()
  }
}

function format({ method = 'GET', target, headers = [] }: Candidate): string {
  return [`${method} ${target} HTTP/1.1`, ...headers.map(([name, value]) => `${name}: ${value}`), '', ''].join('\r\n')
}
