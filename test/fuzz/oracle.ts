/** Decides whether the responses on a connection follow the contract, whatever was sent on it. */
import { MARK, type Input } from './inputs.ts'
import { foreignCanaries, type FuzzGuest, type Role } from './guests.ts'
import type { Sent } from './send.ts'
import { readAnswers, type WireAnswer } from './wire.ts'

/** The statuses that each kind of peer may get. A peer that is not served gets the same status to everything. */
const STATUSES: Readonly<Record<Role, readonly number[]>> = {
  known: [200, 304, 400, 401, 403, 404, 405, 503],
  required: [200, 304, 400, 401, 403, 405, 503],
  disabled: [403],
  unknown: [503],
}

const TTL = 'x-aws-ec2-metadata-token-ttl-seconds'
const HEADERS = new Set([
  'content-type',
  'content-length',
  'date',
  'connection',
  'keep-alive',
  'retry-after',
  'allow',
  'etag',
  TTL,
])
const PAGES = new Set([400, 401, 404, 503])
const DATE = /^[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT$/

/**
 * Checks the responses on one connection. `wrong` describes what is wrong; it is absent if they follow the contract.
 */
export function checkAnswers(
  input: Input,
  guest: FuzzGuest,
  sent: Sent,
): { readonly wrong?: string; readonly statuses: readonly number[] } {
  const { answers, interim, wrong, cut = false } = readAnswers(sent.text, input.bytes.includes('HEAD'))
  const statuses = answers.map(({ status }) => status)
  const faults = [
    sent.stuck ? 'the connection did not end' : undefined,
    cut && sent.broken ? undefined : wrong,
    interim > 0 && !/expect/i.test(input.bytes) ? '100 Continue without an Expect header' : undefined,
    foreignOf(sent.text, guest),
    sent.text.includes(MARK) ? 'a response contains text of the request' : undefined,
    ...answers.map((answer) => wrongAnswer(answer, guest)),
    sent.broken ? undefined : wrongCount(input, guest, answers, sent),
    (guest.role === 'known' || guest.role === 'required') && !sent.broken
      ? wrongContent(input, guest, answers, sent)
      : undefined,
  ].filter((fault) => fault !== undefined)
  return { statuses, ...(faults.length > 0 && { wrong: [...new Set(faults)].join('; ') }) }
}

function foreignOf(text: string, { canary, role }: FuzzGuest): string | undefined {
  const foreign = foreignCanaries(text, role === 'known' ? canary : '')
  return foreign.length === 0 ? undefined : `data of another instance: ${foreign.join(', ')}`
}

function wrongAnswer({ status, headers, body }: WireAnswer, guest: FuzzGuest): string | undefined {
  const header = (name: string) => headers.get(name)
  if (!STATUSES[guest.role].includes(status)) return `status ${status} to a guest that is ${guest.role}`
  const unknown = [...headers.keys()].filter((name) => !HEADERS.has(name))
  if (unknown.length > 0) return `a header that is not in the contract: ${unknown.join(', ')}`
  if (!DATE.test(header('date') ?? '')) return 'no Date'
  if (header('retry-after') !== (status === 503 ? '1' : undefined))
    return `Retry-After: ${String(header('retry-after'))} with ${status}`
  if ((header('allow') !== undefined) !== (status === 405) && !(status === 200 && body === ''))
    return `Allow: ${String(header('allow'))} with ${status}`
  if (status === 403 || status === 405)
    return body === '' && header('content-length') === '0' ? undefined : `a body with ${status}`
  if (!PAGES.has(status)) return undefined
  const isPage = header('content-type') === 'text/html' && (body === '' || body.includes(`<title>${status} - `))
  return isPage || header('content-length') === '0' ? undefined : `not the page of ${status}`
}

function wrongCount(
  { leading, isValid, target, bytes }: Input,
  { role }: FuzzGuest,
  answers: readonly WireAnswer[],
  { plan }: Sent,
): string | undefined {
  const statuses = answers.map(({ status }) => status)
  // a 503 is possible at any time: the guest has a share
  if (role === 'known' && plan.cutAt === undefined && !statuses.includes(503)) {
    if (statuses.length < leading || statuses.slice(0, leading).some((status) => status !== 200))
      return `the statuses ${statuses.join()} after ${leading} valid requests`
    if (isValid && statuses.length > leading) return `${statuses.length} responses to ${leading} requests`
  }
  if (target !== undefined && !/[\r\n]/.test(target) && statuses.length > 1)
    return `${statuses.length} responses to one request: ${statuses.join()}`
  if (statuses.length === 0 && plan.then === 'end' && /[^\r\n]/.test(bytes.slice(0, plan.cutAt))) return 'no response'
  return undefined
}

function wrongContent(
  { target, bytes }: Input,
  guest: FuzzGuest,
  answers: readonly WireAnswer[],
  { plan }: Sent,
): string | undefined {
  for (const { status, headers, body } of answers) {
    if (headers.has(TTL) && !guest.ownsToken && !bytes.includes('PUT')) return 'a token of another guest was accepted'
    if (status !== 200 || (guest.role === 'known' && guest.hasBody(body))) continue
    const isEmpty = body === '' && ((guest.role === 'known' && bytes.includes('HEAD')) || headers.has('allow'))
    const isToken = headers.has(TTL) && bytes.includes('PUT') && /^[!-~]{16,4096}$/.test(body)
    if (!isEmpty && !isToken)
      return `a body that ${guest.role === 'known' ? 'no path of this guest has' : 'requires a token'}: ${JSON.stringify(body.slice(0, 100))}`
  }
  const [first] = answers
  if (target === undefined || first === undefined || guest.role !== 'known' || plan.cutAt !== undefined)
    return undefined
  const expected = guest.bodyOf(target)
  const isRejectedByParser = !/^\/[!-~]*$/.test(target) || target.length > 16_000
  if (first.status === 200 && expected !== first.body) return 'the body of another path'
  if (first.status === 404 && typeof expected === 'string') return '404 for an existing path'
  if (first.status === 400 && expected !== null && !isRejectedByParser) return '400 for a valid target'
  return undefined
}
