/** Generates the inputs for sockets. Each belongs to a family, and depends only on its dice. */
import type { Dice } from './dice.ts'
import { REAL, SERVED, targetOf } from './real.ts'
import { AFTER, OPEN, SHAPES, SMUGGLED } from './smuggling.ts'
import { mutatedTarget } from './targets.ts'

/**
 * One input. `statuses` are the only correct statuses of the responses, if they are known. `target` is that of its
 * first request.
 */
export interface Input {
  readonly family: Family
  readonly bytes: string
  readonly statuses?: readonly number[]
  readonly target?: string
  /** The number of valid requests at its beginning: each must get a 200. */
  readonly leading?: number
  /** The largest correct number of responses. */
  readonly mostAnswers?: number
}

/** A part of generated headers, bodies and targets that must not appear in any response or log line. */
export const MARK = 'zqxj'
/** A placeholder: the sender replaces it with a session token of the first guest. */
export const TOKEN = 'TOKEN-OF-ANOTHER'

const WORDS = [
  '\r\n',
  '\n',
  '\r',
  '\0',
  ' ',
  '\t',
  ':',
  '/',
  '%',
  '?',
  '#',
  ',',
  ';',
  '=',
  '"',
  '\x7f',
  '\x80',
  '\xff',
  'GET',
  'HEAD',
  'PUT',
  'POST',
  'OPTIONS',
  'TRACE',
  'PATCH',
  'PURGE',
  'M-SEARCH',
  'QUERY',
  'PRI',
  'SOURCE',
  'DESCRIBE',
  'SETUP',
  ' RTSP/1.0',
  ' ICE/1.0',
  ' HTTP/1.1',
  ' HTTP/1.0',
  ' HTTP/2.0',
  'HTTP/0.9',
  'Host: ',
  'Content-Length: ',
  'Transfer-Encoding: chunked',
  'Connection: ',
  'close',
  'keep-alive',
  'Upgrade: ',
  'Expect: 100-continue',
  'Trailer: ',
  'TE: trailers',
  'X-Forwarded-For: 127.1.0.1',
  'X-aws-ec2-metadata-token: ',
  'X-aws-ec2-metadata-token-ttl-seconds: ',
  '0\r\n\r\n',
  '\r\n\r\n',
  '0',
  '1',
  '-1',
  '9999999999999999999',
  '/latest/meta-data/',
  '/latest/user-data',
  MARK,
] as const

const NAMES = [
  'X-Forwarded-For',
  'Forwarded',
  'X-Real-IP',
  'X-Client-IP',
  'True-Client-IP',
  'CF-Connecting-IP',
  'X-Original-URL',
  'X-Rewrite-URL',
  'X-Forwarded-Host',
  'X-HTTP-Method-Override',
  'X-Instance-ID',
  'X-Tenant-ID',
  'X-Neutron-Network-ID',
  'Host',
  'Accept',
  'Accept-Version',
  'Accept-Encoding',
  'Range',
  'If-None-Match',
  'If-Modified-Since',
  'Content-Type',
  'Content-Encoding',
  'Cookie',
  'Origin',
  'Via',
  'Max-Forwards',
  'X-aws-ec2-metadata-token',
  'X-aws-ec2-metadata-token-ttl-seconds',
  'Metadata-Flavor',
  '__proto__',
  'constructor',
  'Authorization',
] as const

const HELLOS = [
  '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03',
  '\x16\x03\x03\x00\x7a\x01\x00\x00\x76\x03\x03',
  'SSH-2.0-OpenSSH_9.2\r\n',
  '*1\r\n$4\r\nPING\r\n',
  'PROXY TCP4 127.1.0.1 127.0.0.1 1 80\r\n',
  '\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\x01\0\x01\x7f\0\0\x01\0\x01\0\x50',
  'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
  'EHLO x\r\n',
  'GET /\r\n',
  'GET /latest/user-data\r\n\r\n',
  '\x80\x2e\x01\x00\x02',
  'RTSP/1.0 200 OK\r\n\r\n',
  `DESCRIBE ${OPEN} RTSP/1.0\r\nCSeq: 1\r\n\r\n`,
  'PLAY rtsp://x/ RTSP/1.0\r\n\r\n',
  'FLUSH *\r\n\r\n',
  `SOURCE ${OPEN} ICE/1.0\r\n\r\n`,
  'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n',
  'ICY 200 OK\r\n\r\n',
  'gopher\r\n',
  '\0\0\0\x2f\xffSMB',
] as const

const get = (target: string, headers: readonly string[], version = '1.1') =>
  `${[`GET ${target} HTTP/${version}`, ...headers].join('\r\n')}\r\n\r\n`

const FAMILIES = {
  /** Unchanged requests of real clients. */
  real: (dice) => {
    const bytes = dice.pick(SERVED)
    return { bytes, statuses: [200], target: targetOf(bytes), mostAnswers: 1 }
  },
  /** Requests of real clients with a few bytes changed. */
  mutated: (dice) => ({ bytes: mutate(dice, dice.pick(REAL)) }),
  /** Random bytes. */
  noise: (dice) => ({ bytes: dice.bytes(1 + dice.below(dice.pick([16, 256, 4_096, 40_000]))) }),
  /** Tokens of HTTP in random order. */
  words: (dice) => ({ bytes: Array.from({ length: 1 + dice.below(60) }, () => dice.pick(WORDS)).join('') }),
  targets: (dice) => {
    const target = mutatedTarget(dice)
    return {
      bytes: get(
        target,
        ['Host: x', ...(dice.chance(0.3) ? ['Connection: close'] : [])],
        dice.chance(0.9) ? '1.1' : '1.0',
      ),
      target,
      mostAnswers: /[\r\n]/.test(target) ? Infinity : 1,
    }
  },
  /** Many, long or repeated headers, and headers that other services trust. */
  headers: (dice) => ({ bytes: get(dice.pick(SERVED).split(' ', 2)[1]!, headersOf(dice)) }),
  smuggling: (dice) => {
    const { bytes } = dice.pick(SHAPES)
    return { bytes: (dice.chance(0.5) ? bytes : mutate(dice, bytes)) + dice.pick(['', AFTER, SMUGGLED]) }
  },
  /** Incomplete, malformed or long bodies, with any method. */
  bodies: (dice) => ({ bytes: body(dice), mostAnswers: 2 }),
  /** Valid requests in a row. */
  pipelined: (dice) => {
    const many = Array.from({ length: 2 + dice.below(30) }, () => OPEN)
    return {
      bytes: many.map((target) => get(target, ['Host: x'])).join(''),
      statuses: many.map(() => 200),
      mostAnswers: many.length,
    }
  },
  /** Valid requests, followed by part of another one or by something else. */
  halves: (dice) => {
    const leading = dice.below(dice.pick([4, 40]))
    const whole = dice.pick(REAL)
    const rest = dice.chance(0.5)
      ? whole.slice(0, dice.below(whole.length))
      : dice.pick([mutate(dice, whole), dice.pick(SHAPES).bytes, dice.pick(HELLOS)])
    return { bytes: get(OPEN, ['Host: x']).repeat(leading) + rest, leading }
  },
  protocols: (dice) => ({
    bytes:
      dice.pick(HELLOS) +
      dice.pick([
        '',
        dice.bytes(dice.below(200)),
        AFTER,
        `CONNECT x:${dice.below(70_000)} HTTP/1.1\r\n\r\n${SMUGGLED}`,
      ]),
  }),
  /** Token requests with any lifetime, and requests with any token. */
  tokens: (dice) => ({
    bytes: dice.chance(0.5)
      ? `PUT ${dice.pick(['/latest/api/token', '//latest/api/token/', '/1.0/api/token', '/latest/api/%74oken', '/latest/api/token?x'])} HTTP/1.1\r\nHost: x\r\nX-aws-ec2-metadata-token-ttl-seconds: ${dice.pick(['1', '21600', '21601', '0', '-1', '1e3', '60 ', '6 0', '', '60, 60', '0x3c', '\xd9\xa6', '9'.repeat(1 + dice.below(400))])}\r\n${dice.chance(0.2) ? 'x-aws-ec2-metadata-token-ttl-seconds: 60\r\n' : ''}\r\n`
      : get(dice.pick(SERVED).split(' ', 2)[1]!, [
          'Host: x',
          ...Array.from(
            { length: 1 + dice.below(3) },
            () =>
              `X-aws-ec2-metadata-token: ${dice.pick([TOKEN, TOKEN, `${TOKEN}x`, MARK, '', 'A'.repeat(dice.below(9_000)), dice.bytes(40).replace(/[\r\n\0]/g, ''), 'AQAAA.AAAA.AAAA', '%00', '../../etc/passwd'])}`,
          ),
        ]),
  }),
} as const satisfies Record<string, (dice: Dice) => Omit<Input, 'family'>>

/** The families of inputs. */
export type Family = keyof typeof FAMILIES

/** The relative frequency of each family. */
const SHARES: Readonly<Record<Family, number>> = {
  real: 6,
  mutated: 22,
  noise: 4,
  words: 8,
  targets: 22,
  headers: 8,
  smuggling: 14,
  bodies: 5,
  pipelined: 1,
  halves: 4,
  protocols: 3,
  tokens: 6,
}
const WEIGHTED_FAMILIES = Object.entries(SHARES).flatMap(([family, parts]) =>
  Array.from({ length: parts }, () => family as Family),
)

/** Generates an input. */
export function inputOf(dice: Dice): Input {
  const family = dice.pick(WEIGHTED_FAMILIES)
  return { family, ...FAMILIES[family](dice) }
}

function mutate(dice: Dice, bytes: string): string {
  let text = bytes
  for (let changes = 1 + dice.below(6); changes > 0; changes--) {
    const at = dice.below(text.length + 1)
    const end = Math.min(text.length, at + 1 + dice.below(dice.pick([1, 4, 40])))
    switch (dice.below(7)) {
      case 0:
        text =
          text.slice(0, at) +
          String.fromCharCode((text.charCodeAt(at) || 0) ^ (1 << dice.below(8))) +
          text.slice(at + 1)
        break
      case 1:
        text = text.slice(0, at) + dice.bytes(1 + dice.below(4)) + text.slice(at)
        break
      case 2:
        text = text.slice(0, at) + text.slice(end)
        break
      case 3:
        text = text.slice(0, end) + text.slice(at, end).repeat(1 + dice.below(dice.pick([2, 8, 400]))) + text.slice(end)
        break
      case 4:
        text = text.slice(0, at)
        break
      case 5:
        text = text.slice(0, at) + dice.pick(REAL).slice(dice.below(60))
        break
      default:
        text = text.slice(0, at) + dice.pick(WORDS) + text.slice(at)
        break
    }
  }
  return text
}

function headersOf(dice: Dice): string[] {
  const value = () =>
    dice.pick([
      `127.1.0.${dice.below(256)}`,
      'for=127.1.0.1',
      '',
      MARK,
      '*',
      'bytes=0-1',
      'x'.repeat(dice.below(dice.pick([300, 9_000, 17_000]))),
      dice.bytes(20).replace(/[\r\n\0]/g, ''),
    ])
  switch (dice.below(4)) {
    case 0:
      return Array.from(
        { length: dice.pick([10, 100, 999, 1_000, 1_001, 2_000, 2_001, 6_000]) },
        (_, i) => `${dice.chance(0.01) ? dice.pick(NAMES) : `h${i}`}:`,
      )
    case 1:
      return [
        `${dice.pick(NAMES)}${dice.pick(['', ' ', '\t', '\0', '-', '_'])}: ${value()}`,
        `${MARK}: ${'x'.repeat(dice.pick([16_000, 16_300, 16_383, 16_384, 16_385, 40_000]))}`,
      ]
    case 2: {
      const name = dice.pick(NAMES)
      return Array.from({ length: 2 + dice.below(40) }, () => `${name}: ${value()}`)
    }
    default:
      return Array.from({ length: 1 + dice.below(12) }, () => `${dice.pick(NAMES)}: ${value()}`)
  }
}

function body(dice: Dice): string {
  const line = `${dice.pick(['GET', 'POST', 'PUT', 'HEAD', 'DELETE', 'PATCH', 'OPTIONS', 'PROPFIND', 'TRACE'])} ${dice.pick([OPEN, '/latest/api/token', '/latest/user-data', '/nothing', '*'])} HTTP/1.1\r\nHost: x\r\n${dice.pick(['', 'Expect: 100-continue\r\n', `Content-Type: ${MARK}\r\n`])}`
  const bytes = dice.chance(0.5) ? MARK.repeat(dice.below(dice.pick([4, 300, 20_000]))) : dice.bytes(dice.below(300))
  const length = bytes.length + dice.pick([0, 0, 0, 1, 1_000_000, 4_000_000_000])
  if (dice.chance(0.5)) return `${line}Content-Length: ${length}\r\n\r\n${bytes}`
  const size = () =>
    dice.pick([
      bytes.length.toString(16),
      `${bytes.length.toString(16)};${MARK}="\\""`,
      'ffffffff',
      '0',
      `00${bytes.length.toString(16).toUpperCase()}`,
      '',
      MARK,
    ])
  return `${line}Transfer-Encoding: chunked\r\n\r\n${Array.from({ length: dice.below(4) }, () => `${size()}\r\n${bytes}\r\n`).join('')}${dice.pick(['0\r\n\r\n', '0\r\nX: y\r\n\r\n', '', '0\r\n', `0\r\n${'t:\r\n'.repeat(dice.below(3_000))}\r\n`])}`
}
