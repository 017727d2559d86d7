/**
 * Fuzzes the hop limit of session tokens (contract D6): sends token requests through the real firewall rules, split
 * into segments at any byte and preceded by other bytes.
 *
 * The sender is a container one hop behind the guest. With a hop limit of 1 the daemon mints every token, and none may
 * reach the container. With 2 every token must reach it, which shows that the bytes are token requests.
 */
import type { Test } from 'tap'
import { until } from '../support/programs/daemon.ts'
import { giveIpv6, SERVICE6, startFirewallHost, type FirewallHost } from '../support/netns/firewall-host.ts'
import { must, startChild } from '../support/programs/processes.ts'
import { SERVICE } from '../support/netns/namespaces.ts'
import { diceOf } from './dice.ts'
import type { RunReport } from './pure.ts'

/** The bytes of one connection in pieces, and how many tokens they request. */
export interface Cut {
  readonly pieces: readonly string[]
  readonly tokens: number
}

/**
 * Connections that are open at once. A listener of Node accepts 511 that wait: beyond it, on a busy machine, a segment is
 * sent again for longer than the test waits.
 */
const AT_ONCE = 400
/** The pause between two pieces of a connection. */
const PAUSE_MS = 40
/** Time for the daemon to get all requests: the first segment of a connection that was lost four times comes after 31 s. */
const MINT_MS = 60_000
/** Time for the responses to arrive, which take much less. */
const ARRIVAL_MS = 300

const head = (line: string, ...headers: string[]) => `${[line, 'Host: x', ...headers].join('\r\n')}\r\n\r\n`
const put = (...headers: string[]) =>
  head('PUT /latest/api/token HTTP/1.1', 'X-aws-ec2-metadata-token-ttl-seconds: 60', ...headers)
const GET = head('GET /latest/meta-data/instance-id HTTP/1.1')

/** Token requests. Each contains bytes that a firewall rule could mistake for the beginning of another request. */
const PUTS: readonly string[] = [
  put('X: GET foo', 'Y: HEAD foo'),
  `${put('Content-Length: 8')}GET HEAD`,
  `${put('Transfer-Encoding: chunked')}4\r\nGET \r\n0\r\n\r\n`,
  head('PUT http://GET/latest/api/token HTTP/1.0', 'X-aws-ec2-metadata-token-ttl-seconds: 60'),
]
/** Bytes that precede a token request on the same connection, and how many tokens they request. */
const PREFIXES: readonly (readonly [bytes: string, tokens: number])[] = [
  ['', 0],
  [GET, 0],
  [GET.repeat(3), 0],
  [GET.replace('GET', 'HEAD'), 0],
  ['\r\n\r\n', 0],
  [head('PUT /latest/api/token HTTP/1.1'), 0],
  [put(), 1],
]

/**
 * Each request split in two at every byte, after each prefix: in the same segment as the prefix, or in the next one.
 * Only if `long`, every request has every prefix, and the prefix also has its own segment.
 */
export function everyCut(long: boolean): Cut[] {
  const cuts: Cut[] = []
  for (const [p, request] of PUTS.entries()) {
    for (const [x, [prefix, before]] of PREFIXES.entries()) {
      if (!long && p > 0 && x > 1) continue
      for (let at = 1; at < request.length; at++) {
        const [first, second] = [request.slice(0, at), request.slice(at)]
        const tokens = before + 1
        cuts.push({ pieces: [prefix + first, second], tokens })
        if (long && prefix !== '') cuts.push({ pieces: [prefix, first, second], tokens })
      }
    }
  }
  return cuts
}

/** Several requests in a row, split at random places. */
export function randomCuts(seed: number, many: number): Cut[] {
  return Array.from({ length: many }, (_, n) => {
    const dice = diceOf(seed, n)
    const prefixes = Array.from({ length: dice.below(4) }, () => dice.pick(PREFIXES))
    const bytes = prefixes.map(([text]) => text).join('') + dice.pick(PUTS)
    const ends = [
      ...new Set([...Array.from({ length: 1 + dice.below(5) }, () => 1 + dice.below(bytes.length - 1)), bytes.length]),
    ].sort((a, b) => a - b)
    return {
      pieces: ends.map((end, i) => bytes.slice(ends[i - 1] ?? 0, end)),
      tokens: 1 + prefixes.reduce((sum, [, tokens]) => sum + tokens, 0),
    }
  })
}

/** The service addresses, and the maximum segment size (mss) for the daemon's responses to the container. */
const PATHS = [
  { address: SERVICE },
  { address: SERVICE6 },
  { address: SERVICE, mss: 100 },
  { address: SERVICE6, mss: 100 },
] as const

/** Sends cuts from a container with hop limits 1 and 2, over the first `paths` of PATHS. The host stops with `t`. */
export async function fuzzCuts(t: Pick<Test, 'teardown'>, cuts: readonly Cut[], paths: number): Promise<RunReport> {
  const host = await startFirewallHost(t, { IMDS_LISTEN: `${SERVICE}:80,[${SERVICE6}]:80` })
  const alpha = await host.addGuest('alpha')
  const container = await alpha.addContainer()
  await giveIpv6(host, alpha, container, PREFIX)
  await host.startFirewall()
  const interfaces = [
    { id: 'int-alpha', macAddress: alpha.macAddress, ipv4Addresses: [alpha.address], ipv6Prefixes: [`${PREFIX}::/64`] },
  ]
  const requested = cuts.reduce((sum, { tokens }) => sum + tokens, 0)
  const failures: string[] = []
  let tried = 0
  for (const { address, ...path } of PATHS.slice(0, paths)) {
    const route = [
      'ip',
      address === SERVICE ? '-4' : '-6',
      'route',
      'change',
      'default',
      'via',
      address === SERVICE ? '172.17.0.1' : `${PREFIX}:c::1`,
      'dev',
      'eth0',
    ]
    await must([...container.within, ...route, ...('mss' in path ? ['advmss', String(path.mss)] : [])])
    for (const httpPutResponseHopLimit of [1, 2]) {
      await host.putAndWait(alpha, { interfaces, options: { httpPutResponseHopLimit, httpProtocolIpv6: 'enabled' } })
      const { minted, arrived } = await sendCuts(host, container, address, cuts)
      const fail = (what: string) =>
        failures.push(`${address} ${JSON.stringify(path)}, hop limit ${httpPutResponseHopLimit}: ${what}`)
      if (minted !== requested) fail(`${minted} of ${requested} tokens were minted`)
      for (const [i, { pieces, tokens }] of cuts.entries()) {
        tried += 1
        const expected = httpPutResponseHopLimit === 1 ? 0 : tokens
        if (arrived[i] !== expected)
          fail(`${String(arrived[i])} tokens arrived, not ${expected}: ${JSON.stringify(pieces)}`)
      }
    }
  }
  return { tried, good: tried - failures.length, failures: failures.slice(0, MAX_FAILURES) }
}

const PREFIX = '2a02:1348:178:1'
const MAX_FAILURES = 10

/**
 * Sends cuts from a namespace to a service address. Returns how many tokens the daemon minted, and how many arrived for
 * each cut.
 */
async function sendCuts(
  host: FirewallHost,
  { within }: { readonly within: readonly string[] },
  address: string,
  cuts: readonly Cut[],
): Promise<{ readonly minted: number; readonly arrived: readonly number[] }> {
  const agent = await startChild([...within, process.execPath, AGENT, address, String(PAUSE_MS)])
  let onReply: (line: string) => void = () => undefined // it prints only replies
  agent.onLine((line) => onReply(line))
  const command = (line: string) =>
    new Promise<string>((resolve) => {
      onReply = resolve
      agent.writeLine(line)
    })
  const first = await minted(host)
  const arrived: number[] = []
  let expected = first
  for (let from = 0; from < cuts.length; from += AT_ONCE) {
    const some = cuts.slice(from, from + AT_ONCE)
    expected += some.reduce((sum, { tokens }) => sum + tokens, 0)
    await command(JSON.stringify(some.map(({ pieces }) => pieces)))
    await until(async () => (await minted(host)) >= expected, `${expected - first} tokens`, MINT_MS).catch(() => {
      /* the caller compares the counts */
    })
    await new Promise((resolve) => setTimeout(resolve, ARRIVAL_MS))
    arrived.push(
      ...(JSON.parse(await command('stop')) as string[]).map((text) => text.match(/[\w-]{54}==/g)?.length ?? 0),
    )
  }
  await agent.stop()
  return { minted: (await minted(host)) - first, arrived }
}

const AGENT = new URL('../support/programs/pieces-agent.ts', import.meta.url).pathname

async function minted(host: FirewallHost): Promise<number> {
  const line =
    /^imds_requests_total\{route="\/latest\/api\/token",method="PUT",status="200",reason="served"\} (\d+)$/m.exec(
      await host.operator('/metrics'),
    )
  return Number(line?.[1] ?? 0)
}
