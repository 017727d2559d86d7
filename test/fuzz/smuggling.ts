/**
 * Requests for request smuggling, which two parsers could read differently (RFC 9112, 11.2), each with the correct
 * result.
 *
 * An ambiguous request gets a 400, and its connection is closed. One that has only one meaning is answered.
 */

/** The path of the visible request. */
export const OPEN = '/latest/meta-data/instance-id'
/** The smuggled request. It is answered only if it is a pipelined request for every parser. */
export const SMUGGLED = 'GET /latest/user-data HTTP/1.1\r\nHost: x\r\n\r\n'
/** The request that is sent after each shape. It must get its own response or none. */
export const AFTER = `GET ${OPEN} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`

/**
 * A shape: its bytes, and the statuses of the responses to it and to AFTER, in order. `refused`: one 400, and the
 * connection is closed.
 */
export interface Shape {
  readonly name: string
  readonly bytes: string
  readonly outcome: 'refused' | readonly number[]
}

const shape = (
  name: string,
  outcome: Shape['outcome'],
  headers: readonly string[],
  body = '',
  line = `GET ${OPEN} HTTP/1.1`,
): Shape => ({ name, outcome, bytes: `${[line, 'Host: x', ...headers].join('\r\n')}\r\n\r\n${body}` })
const bare = (name: string, outcome: Shape['outcome'], bytes: string): Shape => ({ name, outcome, bytes })

const CHUNKED = `0\r\n\r\n${SMUGGLED}`
const INNER_LENGTH = String(SMUGGLED.length)
const TE = 'Transfer-Encoding'
const BOTH = [200, 200] as const
/** A request with a body is the last on its connection: a token request could hide after the body (contract D6). */
const LAST = [200] as const
/** The head is valid but the body is malformed: the request gets its response, and the connection is closed. */
const BROKEN = [200] as const

const LENGTHS: readonly Shape[] = [
  shape('Content-Length and Transfer-Encoding', 'refused', ['Content-Length: 4', `${TE}: chunked`], CHUNKED),
  shape('Transfer-Encoding and Content-Length', 'refused', [`${TE}: chunked`, 'Content-Length: 4'], CHUNKED),
  shape('Content-Length: 0 and Transfer-Encoding', 'refused', ['Content-Length: 0', `${TE}: chunked`], CHUNKED),
  shape('two lengths that differ', 'refused', ['Content-Length: 0', `Content-Length: ${INNER_LENGTH}`], SMUGGLED),
  shape('two equal lengths', 'refused', ['Content-Length: 0', 'Content-Length: 0']),
  shape('a list of lengths', 'refused', ['Content-Length: 0, 0']),
  shape('a negative length', 'refused', ['Content-Length: -1']),
  shape('a length with a plus', 'refused', ['Content-Length: +5'], 'hello'),
  shape('a length in hexadecimal', 'refused', ['Content-Length: 0x5'], 'hello'),
  shape('a length with a fraction', 'refused', ['Content-Length: 5.0'], 'hello'),
  shape('a length with an exponent', 'refused', ['Content-Length: 1e1'], 'hello'),
  shape('a length with a space inside', 'refused', ['Content-Length: 1 0'], 'hello'),
  shape('a length beyond 64 bits', 'refused', ['Content-Length: 99999999999999999999'], 'hello'),
  shape('a length that wraps to 5 in 64 bits', 'refused', ['Content-Length: 18446744073709551621'], 'hello'),
  shape('a length in digits of another alphabet', 'refused', ['Content-Length: \xd9\xa5'], 'hello'),
  shape('a length that is empty', 'refused', ['Content-Length:']),
  shape('a length with zeros before it', LAST, ['Content-Length: 005'], 'hello'),
  shape('a length with spaces around it', LAST, ['Content-Length: \t 5 '], 'hello'),
  shape('a length on the next line (obs-fold)', 'refused', ['Content-Length:\r\n 5'], 'hello'),
  shape('a length with a space before its colon', 'refused', [`Content-Length : ${INNER_LENGTH}`], SMUGGLED),
  shape(
    'Content_Length with an underscore, which is another header',
    [200, 200, 200],
    [`Content_Length: ${INNER_LENGTH}`],
    SMUGGLED,
  ),
  shape(
    'a length named by Connection, as if it were for one hop',
    LAST,
    ['Connection: Content-Length', `Content-Length: ${INNER_LENGTH}`],
    SMUGGLED,
  ),
  shape('a body that looks like a request', LAST, [`Content-Length: ${INNER_LENGTH}`], SMUGGLED),
]

const ENCODINGS: readonly Shape[] = [
  ...(
    [
      ['an encoding that does not exist', `${TE}: xchunked`],
      ['identity', `${TE}: identity`],
      ['gzip alone', `${TE}: gzip`],
      ['chunked with a parameter', `${TE}: chunked;q=1`],
      ['chunked in quotes', `${TE}: "chunked"`],
      ['a no-break space before chunked', `${TE}: \xa0chunked`],
      ['a comma only', `${TE}: ,`],
    ] as const
  ).map(([name, header]) => shape(`Transfer-Encoding: ${name}`, 'refused', [header], CHUNKED)),
  ...(
    [
      ['another encoding after chunked', `${TE}: chunked, identity`],
      ['a vertical tab before chunked', `${TE}: \x0bchunked`],
      ['a NUL before chunked', `${TE}: \x00chunked`],
      ['a NUL after chunked', `${TE}: chunked\x00`],
      ['no encoding', `${TE}:`],
      ['chunked, then identity in a second header', `${TE}: chunked\r\n${TE}: identity`],
      ['a space before the colon', `${TE} : chunked`],
      ['a tab before the colon', `${TE}\t: chunked`],
      ['a NUL in the name', `${TE}\x00: chunked`],
      ['a bare LF before it', `X: y\n${TE}: chunked`],
      ['a bare CR before it', `X: y\r${TE}: chunked`],
      ['a bare CR after the colon', `${TE}:\rchunked`],
      ['a folded line before chunked', `${TE}:\r\n chunked`],
      ['a folded line after chunked', `${TE}: chunked\r\n , identity`],
    ] as const
  ).map(([name, header]) => shape(`Transfer-Encoding: ${name}`, 'refused', [header], CHUNKED)),
  shape('Transfer-Encoding: chunked in another case', LAST, ['tRANSFER-eNCODING: cHUNKED'], CHUNKED),
  shape('Transfer-Encoding: a tab before chunked', LAST, [`${TE}:\tchunked`], CHUNKED),
  shape(
    'Transfer_Encoding with an underscore, which is another header',
    [200, 400],
    ['Transfer_Encoding: chunked'],
    CHUNKED,
  ),
  shape(
    'Transfer-Encoding: in HTTP/1.0',
    'refused',
    ['Connection: keep-alive', `${TE}: chunked`],
    CHUNKED,
    `GET ${OPEN} HTTP/1.0`,
  ),
]

const CHUNKS: readonly Shape[] = [
  ...(
    [
      ['without a size', '\r\n\r\n'],
      ['with a size that is not a number', 'G\r\nx\r\n0\r\n\r\n'],
      ['with a negative size', '-1\r\nx\r\n0\r\n\r\n'],
      ['with a size that begins with 0x', '0x1\r\nx\r\n0\r\n\r\n'],
      ['with a size beyond 64 bits', '10000000000000001\r\nx\r\n0\r\n\r\n'],
      ['with a bare LF after its size', '1\nx\r\n0\r\n\r\n'],
      ['with a space after its size', '1 \r\nx\r\n0\r\n\r\n'],
      ['with a space before its size', ' 1\r\nx\r\n0\r\n\r\n'],
      ['with more bytes than its size', '1\r\nxy\r\n0\r\n\r\n'],
      ['with a bare LF after its bytes', '1\r\nx\n0\r\n\r\n'],
      ['with a bare LF in an extension', '1;a=b\nx\r\n0\r\n\r\n'],
      ['with a bare CR in an extension', '1;a\rb\r\nx\r\n0\r\n\r\n'],
      ['with an endless extension', `1;${'a'.repeat(20_000)}\r\nx\r\n0\r\n\r\n`],
      ['with a bare LF at its end', `0\n\n${SMUGGLED}`],
      ['with a trailer that is not a header', '0\r\nno header\r\n\r\n'],
    ] as const
  ).map(([name, body]) => shape(`a chunk ${name}`, BROKEN, [`${TE}: chunked`], body)),
  shape('a chunk with an extension', LAST, [`${TE}: chunked`], '1;a=b;c="d"\r\nx\r\n0;last\r\n\r\n'),
  shape('a chunk with zeros before its size', LAST, [`${TE}: chunked`], '0000000000000001\r\nx\r\n00\r\n\r\n'),
  shape(
    'a trailer that forges framing',
    BROKEN,
    [`${TE}: chunked`, 'Trailer: Content-Length'],
    '0\r\nContent-Length: 99\r\n\r\n',
  ),
  shape(
    'a trailer that forges an origin',
    LAST,
    [`${TE}: chunked`, 'Trailer: X-Forwarded-For'],
    '0\r\nX-Forwarded-For: 127.0.0.9\r\n\r\n',
  ),
]

const HEADS: readonly Shape[] = [
  bare('bare LF at every end of line', 'refused', `GET ${OPEN} HTTP/1.1\nHost: x\n\n`),
  bare('a bare LF at the end of the head', 'refused', `GET ${OPEN} HTTP/1.1\r\nHost: x\r\n\n`),
  bare('a bare CR at the end of the head', 'refused', `GET ${OPEN} HTTP/1.1\r\nHost: x\r\n\rX`),
  bare('a bare LF in the request line', 'refused', `GET ${OPEN} HTTP/1.1\nHost: x\r\n\r\n`),
  bare('a header that is folded', 'refused', `GET ${OPEN} HTTP/1.1\r\nHost: x\r\n y\r\n\r\n`),
  bare('a folded line before any header', 'refused', `GET ${OPEN} HTTP/1.1\r\n Host: x\r\n\r\n`),
  bare('a header without a name', 'refused', `GET ${OPEN} HTTP/1.1\r\n: x\r\n\r\n`),
  bare('a header without a colon', 'refused', `GET ${OPEN} HTTP/1.1\r\nHost\r\n\r\n`),
  bare('a header with a space in its name', 'refused', `GET ${OPEN} HTTP/1.1\r\nHo st: x\r\n\r\n`),
  bare('a NUL in a header', 'refused', `GET ${OPEN} HTTP/1.1\r\nHost: x\x00y\r\n\r\n`),
  bare('two spaces in the request line', BOTH, `GET  ${OPEN} HTTP/1.1\r\nHost: x\r\n\r\n`),
  bare('a tab in the request line', 'refused', `GET\t${OPEN} HTTP/1.1\r\nHost: x\r\n\r\n`),
  bare('a space after the version', 'refused', `GET ${OPEN} HTTP/1.1 \r\nHost: x\r\n\r\n`),
  bare('a method in lower case', 'refused', `get ${OPEN} HTTP/1.1\r\nHost: x\r\n\r\n`),
  bare('a version in lower case', 'refused', `GET ${OPEN} http/1.1\r\nHost: x\r\n\r\n`),
  bare('a version of three digits', 'refused', `GET ${OPEN} HTTP/1.10\r\nHost: x\r\n\r\n`),
  bare('a version that does not exist', 'refused', `GET ${OPEN} HTTP/1.9\r\nHost: x\r\n\r\n`),
  bare('a space before the method', 'refused', ` GET ${OPEN} HTTP/1.1\r\nHost: x\r\n\r\n`),
  bare('empty lines before the request', BOTH, `\r\n\r\nGET ${OPEN} HTTP/1.1\r\nHost: x\r\n\r\n`),
  bare('two hosts', BOTH, `GET ${OPEN} HTTP/1.1\r\nHost: x\r\nHost: evil.example\r\n\r\n`),
  bare('HTTP/0.9', 'refused', `GET ${OPEN}\r\n`),
  bare('HTTP/0.9 with headers', 'refused', `GET ${OPEN}\nHost: x\r\n\r\n`),
  bare('RTSP, whose methods Node parses too', [405], `DESCRIBE ${OPEN} RTSP/1.0\r\nCSeq: 1\r\n\r\n`),
  bare("RTSP's methods in HTTP/0.9", 'refused', `PLAY *\r\nHost: x\r\n\r\n`),
  bare('ICY', [405], `SOURCE ${OPEN} ICE/1.0\r\n\r\n`),
  bare('the preface of HTTP/2', 'refused', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00'),
  bare(
    'an upgrade to h2c, which is ignored',
    [200],
    `GET ${OPEN} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n`,
  ),
  bare(
    'an upgrade to a WebSocket, which is ignored',
    [200],
    `GET ${OPEN} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n`,
  ),
  bare(
    'CONNECT, with a request in the tunnel',
    [405],
    `CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: x\r\n\r\n${SMUGGLED}`,
  ),
  bare(
    'an absolute target with another host',
    BOTH,
    `GET http://evil.example:81${OPEN} HTTP/1.1\r\nHost: also.example\r\n\r\n`,
  ),
  bare('an absolute target with another scheme', BOTH, `GET gopher://evil.example${OPEN} HTTP/1.1\r\nHost: x\r\n\r\n`),
  bare('a target without a slash', 'refused', 'GET evil.example:80 HTTP/1.1\r\nHost: x\r\n\r\n'),
  bare(
    'X-Forwarded-For after the maximum number of headers',
    'refused',
    `GET ${OPEN} HTTP/1.1\r\nHost: x\r\n${'h:\r\n'.repeat(1_000)}X-Forwarded-For: 127.0.0.9\r\n\r\n`,
  ),
  bare(
    'PROXY protocol, which names another address',
    'refused',
    `PROXY TCP4 127.0.0.9 127.0.0.1 1 80\r\nGET ${OPEN} HTTP/1.1\r\nHost: x\r\n\r\n`,
  ),
]

/** Every shape. */
export const SHAPES: readonly Shape[] = [...LENGTHS, ...ENCODINGS, ...CHUNKS, ...HEADS]
