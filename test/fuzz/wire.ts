/**
 * Parses responses strictly: every byte must belong to a well-formed response.
 *
 * Whether a response has a body depends on the method, which is unknown for a mutated request. If it could be HEAD,
 * both possibilities are tried.
 */

/** One final response. */
export interface WireAnswer {
  readonly status: number
  readonly headers: ReadonlyMap<string, string>
  readonly body: string
}

/**
 * All responses on a connection, and what is wrong with the bytes, if anything is. `interim` counts 100 Continue.
 * `cut`: the last response is incomplete.
 */
export interface WireAnswers {
  readonly answers: readonly WireAnswer[]
  readonly interim: number
  readonly wrong?: string
  readonly cut?: boolean
}

const CONTINUE = 'HTTP/1.1 100 Continue\r\n\r\n'
const STATUS_LINE = /^HTTP\/1\.1 ([1-5]\d\d) [A-Z][A-Za-z -]+$/
const HEADER = /^([A-Za-z][A-Za-z0-9-]*): ([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)$/

/** Parses everything that was received on one connection. `mayLackBodies`: a request may have been a HEAD. */
export function readAnswers(text: string, mayLackBodies: boolean): WireAnswers {
  const failedOffsets = new Set<number>()
  let deepest: WireAnswers = { answers: [], interim: 0, wrong: 'nothing was read' }
  const fail = (found: WireAnswers) => {
    if (found.answers.length >= deepest.answers.length) deepest = found
  }

  const read = (from: number, before: readonly WireAnswer[], interimBefore: number): WireAnswers | undefined => {
    let [at, interim] = [from, interimBefore]
    const answers = [...before]
    for (;;) {
      if (at === text.length) return { answers, interim }
      if (failedOffsets.has(at)) return undefined
      if (text.startsWith(CONTINUE, at)) {
        interim += 1
        at += CONTINUE.length
        continue
      }
      const head = readHead(text, at)
      if (typeof head === 'string') {
        failedOffsets.add(at)
        fail({ answers, interim, wrong: head, cut: head === CUT })
        return undefined
      }
      const { status, headers, end } = head
      const length = Number(headers.get('content-length') ?? 0) // 304 has none
      if (answers.at(-1)?.headers.get('connection') === 'close') {
        fail({ answers, interim, wrong: 'a response after one with Connection: close' })
        return undefined
      }
      if (mayLackBodies && length > 0) {
        const without = read(end, [...answers, { status, headers, body: '' }], interim)
        if (without !== undefined) return without
      }
      if (end + length > text.length) {
        fail({
          answers,
          interim,
          wrong: `a body of ${text.length - end} bytes, not ${length}`,
          cut: true,
        })
        return undefined
      }
      answers.push({ status, headers, body: text.slice(end, end + length) })
      at = end + length
    }
  }
  return read(0, [], 0) ?? deepest
}

const CUT = 'an incomplete head'

function readHead(
  text: string,
  at: number,
): { status: number; headers: ReadonlyMap<string, string>; end: number } | string {
  const end = text.indexOf('\r\n\r\n', at)
  if (end === -1)
    return text.startsWith('HTTP/1.1 ', at) || 'HTTP/1.1 '.startsWith(text.slice(at))
      ? CUT
      : 'bytes that are not a response'
  const [statusLine = '', ...lines] = text.slice(at, end).split('\r\n')
  const status = STATUS_LINE.exec(statusLine)?.[1]
  if (status === undefined) return `no status line: ${JSON.stringify(statusLine.slice(0, 80))}`
  const headers = new Map<string, string>()
  for (const line of lines) {
    const [, name, value] = HEADER.exec(line) ?? []
    if (name === undefined || value === undefined) return `no header line: ${JSON.stringify(line.slice(0, 80))}`
    if (headers.has(name.toLowerCase())) return `a header twice: ${name}`
    headers.set(name.toLowerCase(), value)
  }
  if (status !== '304' && !/^(?:0|[1-9]\d*)$/.test(headers.get('content-length') ?? ''))
    return `no exact Content-Length: ${String(headers.get('content-length'))}`
  return { status: Number(status), headers, end: end + 4 }
}
