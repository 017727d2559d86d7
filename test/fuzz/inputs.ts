/**
 * Generates the inputs for sockets: requests of real clients (docs/clients.md), shapes of request smuggling and hellos of
 * other protocols, whole or with random changes. An input depends only on its dice.
 */
import type { Dice } from './dice.ts'
import { AFTER, OPEN, SHAPES, SMUGGLED } from './smuggling.ts'

/** One input. */
export interface Input {
  readonly bytes: string
  /** The number of valid requests at its beginning: each must get a 200. */
  readonly leading: number
}

/** A part of generated headers, bodies and targets that must not appear in any response or log line. */
export const MARK = 'zqxj'
/** A placeholder: the sender replaces it with a session token of the first guest. */
export const TOKEN = 'TOKEN-OF-ANOTHER'
const TTL = 'X-aws-ec2-metadata-token-ttl-seconds'

const request = (line: string, headers: readonly string[] = ['Host: x'], body = '') =>
  `${[`${line} HTTP/1.1`, ...headers].join('\r\n')}\r\n\r\n${body}`
const get = (path: string, ...headers: string[]) => request(`GET ${path}`, ['Host: 169.254.169.254', ...headers])

const CLOUD_INIT = ['Accept-Encoding: gzip, deflate, br', 'Accept: */*', 'Connection: keep-alive']
/** GETs for which every served guest gets a 200, byte for byte as far as that is known. */
const SERVED: readonly string[] = [
  get('/2009-04-04/meta-data/instance-id', ...CLOUD_INIT, 'User-Agent: Cloud-Init/25.1'),
  get('/2021-03-23/meta-data/public-keys/0/openssh-key', ...CLOUD_INIT, 'User-Agent: python-requests/2.28.1'),
  get('/2021-03-23/meta-data/tags/instance/a:b@c', ...CLOUD_INIT),
  get('//latest/meta-data/hostname'), // AWS's JavaScript client
  get('/latest//meta-data/reservation-id', 'User-Agent: curl/7.88.1', 'Accept: */*'), // ec2-metadata
  get('/openstack/latest/user_data', 'Accept: application/vnd.coreos.ignition+json;version=3.3.0, */*;q=0.1'),
  get('/latest/user-data/', 'Accept-Encoding: gzip;q=1.0,deflate;q=0.6,identity;q=0.3', 'User-Agent: Ruby'), // facter
  get('/', 'Accept: */*', 'User-Agent: Ruby'), // ohai
  get('/latest/meta-data/hostname?error_body=false', 'Accept: */*'), // systemd-imdsd
  request('GET http://169.254.169.254/latest/meta-data/mac', ['Host: 169.254.169.254', 'Proxy-Connection: Keep-Alive']),
]
/** Requests with tokens, other methods or bodies, and what other protocols begin with. */
const OTHERS: readonly string[] = [
  request('PUT /latest/api/token', ['Host: x', `${TTL}: 21600`, 'Content-Length: 0']),
  request('PUT /latest/api/token', ['Host: x', `${TTL}: 60`, 'Transfer-Encoding: chunked'], '0\r\n\r\n'),
  get('/latest/meta-data/iam/security-credentials/', `X-aws-ec2-metadata-token: ${TOKEN}`),
  get('/latest/dynamic/instance-identity/document', `X-aws-ec2-metadata-token: AQAAAKJ3fuzz==`),
  request('HEAD /latest/meta-data/instance-id'),
  request('OPTIONS /latest/api/token'),
  request('POST /latest/meta-data/', ['Host: x', 'Content-Length: 14', 'Expect: 100-continue'], '{"evil": true}'),
  request(
    `GET ${OPEN}`,
    ['Host: x', 'Transfer-Encoding: chunked', 'Trailer: X-Forwarded-For'],
    `5;${MARK}="\\""\r\nhello\r\n0\r\nX-Forwarded-For: 127.1.0.1\r\n\r\n`,
  ),
  request(`PUT ${OPEN}`, ['Host: x', 'Content-Length: 4000000000'], MARK.repeat(20_000)),
  request(
    `GET ${OPEN}`,
    Array.from({ length: 999 }, (_, i) => `h${i}:`),
  ),
  request(`GET ${OPEN}`, ['Host: x', `${MARK}: ${'x'.repeat(16_300)}`]),
  '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03',
  'SSH-2.0-OpenSSH_9.2\r\n',
  '*1\r\n$4\r\nPING\r\n',
  'PROXY TCP4 127.1.0.1 127.0.0.1 1 80\r\n',
  '\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\x01\0\x01\x7f\0\0\x01\0\x01\0\x50',
  `DESCRIBE ${OPEN} RTSP/1.0\r\nCSeq: 1\r\n\r\n`,
  `CONNECT x:80 HTTP/1.1\r\n\r\n${SMUGGLED}`,
  'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n',
]
const CORPUS = [...SERVED, ...OTHERS, ...SHAPES.map(({ bytes }) => bytes)]

const WORDS = [
  ...['\r\n', '\n', '\r', '\0', ' ', '\t', ':', '/', '%', '?', '#', ',', ';', '=', '"', '\x7f', '\x80', '\xff', MARK],
  ...['GET', 'HEAD', 'PUT', 'POST', 'OPTIONS', 'TRACE', 'PURGE', 'QUERY', 'PRI', 'SOURCE', 'SETUP'],
  ...[' RTSP/1.0', ' ICE/1.0', ' HTTP/1.1', ' HTTP/1.0', ' HTTP/2.0', '/latest/user-data', '/latest/api/token'],
  ...['Host: ', 'Content-Length: ', 'Transfer-Encoding: chunked', 'Connection: ', 'close', 'keep-alive', 'Upgrade: '],
  ...['Expect: 100-continue', 'Trailer: ', 'X-Forwarded-For: 127.1.0.1', 'Forwarded: for=127.1.0.1', 'X-Real-IP: '],
  ...['X-Original-URL: ', 'X-HTTP-Method-Override: ', 'X-Instance-ID: ', 'Accept: ', 'Range: bytes=0-1', 'Cookie: '],
  ...['If-None-Match: *', '__proto__: ', 'constructor: ', `X-aws-ec2-metadata-token: ${TOKEN}`, `${TTL}: `],
  ...['0\r\n\r\n', '\r\n\r\n', '0', '1', '-1', '9999999999999999999', 'ffffffff', '0x3c', '1e3', '\xd9\xa6'],
]

/** Pieces of targets that other servers handled wrongly. */
const PIECES = [
  ...['/', '//', '/./', '/../', '..', '.', '%2e', '%2E%2e', '%2f', '%2F', '%5c', '\\', '..\\', '%252f', '%252e%252e'],
  ...['%25', '%', '%2', '%zz', '%u002f', '%00', '\x00', '%0a', '%0d%0a', '%09', '%7f', '%20', '+', 'é', '\xff', '\x80'],
  ...['%c0%af', '%c0%2f', '%c1%9c', '%e0%80%af', '%f0%80%80%af', '%ed%a0%80', '%f4%90%80%80', '%ff', '%c3%a9', '%C3'],
  ...['%e2%80%8b', '%ef%bc%8f', ';', ';x=y', '?', '#', '?a=b', '?/../', '??', '#/x', '/~', '/*', '*', '/@', ':'],
  ...['__proto__', 'constructor', '/latest', '/meta-data', '/user-data', '/toString', '%5f%5fproto%5f%5f', '/srv-f0'],
  ...['/127.1.0.1', '?ip=127.1.0.1', '?recursive=true', '?wait_for_change=true&timeout_sec=3600'],
  ...['http://evil.example', 'https://[::1]:443', 'http://user:secret@x', 'http:', '//evil.example', 'javascript://'],
]
const PATHS = [...SERVED.map((bytes) => bytes.split(' ', 2)[1]!), '/latest/meta-data/', '/1.0/meta-data/local-ipv4']
const LENGTHS = [1, 255, 256, 4_096, 16_000, 16_300, 16_370, 16_384, 16_385, 16_400, 66_000]

/** Generates an input. */
export function inputOf(dice: Dice): Input {
  const kind = dice.below(10)
  if (kind === 0) {
    const many = Array.from({ length: dice.pick([1, 1, 1, 2 + dice.below(30)]) }, () => dice.pick(SERVED))
    return { bytes: many.join(''), leading: many.length }
  }
  if (kind < 4) return { bytes: request(`GET ${mutatedTarget(dice)}`), leading: 0 }
  const leading = dice.chance(0.2) ? dice.below(40) : 0
  const noise = dice.chance(0.05) ? dice.bytes(1 + dice.below(dice.pick([16, 256, 40_000]))) : undefined
  const rest = noise ?? mutate(dice, dice.chance(0.1) ? '' : dice.pick(CORPUS))
  return {
    bytes: get(OPEN).repeat(leading) + rest + dice.pick(['', AFTER, SMUGGLED]),
    leading,
  }
}

function mutate(dice: Dice, bytes: string): string {
  let text = bytes
  for (let changes = dice.below(7); changes > 0; changes--) {
    const at = dice.below(text.length + 1)
    const end = Math.min(text.length, at + 1 + dice.below(dice.pick([1, 4, 40])))
    const [before, part, after] = [text.slice(0, at), text.slice(at, end), text.slice(end)]
    text = dice.pick([
      () => before + part.replace(/^[^]/, (c) => String.fromCharCode(c.charCodeAt(0) ^ (1 << dice.below(8)))) + after,
      () => before + dice.bytes(1 + dice.below(4)) + part + after,
      () => before + after,
      () => before + part.repeat(2 + dice.below(dice.pick([2, 8, 400]))) + after,
      () => before,
      () => before + dice.pick(CORPUS).slice(dice.below(60)),
      () => before + Array.from({ length: 1 + dice.below(6) }, () => dice.pick(WORDS)).join('') + part + after,
    ])()
  }
  return text
}

/** A known path with up to four changes. */
function mutatedTarget(dice: Dice): string {
  let target = dice.pick(PATHS)
  const someEscaped = (text: string) => text.replace(/[^]/g, (c) => (dice.chance(0.3) ? percent(c, dice) : c))
  for (let changes = 1 + dice.below(4); changes > 0; changes--) {
    const at = dice.below(target.length + 1)
    const insert = (text: string) => target.slice(0, at) + text + target.slice(at)
    target = dice.pick([
      () => someEscaped(target),
      () => someEscaped(someEscaped(target)),
      () => dice.pick(PIECES) + target,
      () => target.replaceAll('/', dice.pick(['//', '/./', '%2f', '\\', '/%20/', '/%00/'])),
      () => target.replace(/[a-z]/g, (c) => (dice.chance(0.5) ? c.toUpperCase() : c)),
      () => insert(dice.pick(['a', '/', '%61', '../', '%2e%2e/']).repeat(dice.pick(LENGTHS) / (1 + dice.below(6)))),
      () => insert(dice.pick(PIECES)),
      () => insert(dice.pick(PIECES)),
    ])()
  }
  return target
}

function percent(c: string, dice: Dice): string {
  const hex = c.charCodeAt(0).toString(16).padStart(2, '0')
  return `%${dice.chance(0.5) ? hex : hex.toUpperCase()}`
}
