/**
 * The oracles of the fuzz suite: what must hold for every connection, whatever was sent on it.
 */
import { MARK, type Input } from './inputs.ts'
import { foreignCanaries, type FuzzGuest, type Role } from './population.ts'
import type { Sent } from './send.ts'
import { readAnswers, type WireAnswer } from './wire.ts'

/** The statuses of the contract, by the kind of peer: a peer that is not served gets its status whatever it sends. */
const STATUSES: Readonly<Record<Role, readonly number[]>> = { known: [200, 400, 401, 403, 404, 405, 503], required: [200, 400, 401, 403, 405, 503], disabled: [403], contested: [503], unknown: [503] }

const TTL = 'x-aws-ec2-metadata-token-ttl-seconds'
const HEADERS = new Set(['content-type', 'content-length', 'date', 'connection', 'keep-alive', 'retry-after', 'allow', 'etag', TTL])
const PAGES = new Set([400, 401, 404, 503])
const DATE = /^[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT$/

/** Describes what is wrong with the responses; undefined if they follow the contract. `statuses` are those of the responses. */
export function judge(input: Input, guest: FuzzGuest, sent: Sent): { readonly wrong?: string, readonly statuses: readonly number[] } {
  const { answers, interim, wrong, cut = false } = readAnswers(sent.text, input.bytes.includes('HEAD'))
  const statuses = answers.map(({ status }) => status)
  const faults = [
    sent.stuck ? `the connection did not end: ${sent.stuck}` : undefined,
    cut && sent.broken ? undefined : wrong,
    interim > 0 && !/expect/i.test(input.bytes) ? '100 Continue for nothing' : undefined,
    foreignOf(sent.text, guest),
    sent.text.includes(MARK) ? 'an answer holds what the request said' : undefined,
    ...answers.map((answer) => wrongAnswer(answer, guest)),
    sent.broken ? undefined : wrongCount(input, guest, answers, sent),
    (guest.role === 'known' || guest.role === 'required') && !sent.broken ? wrongContent(input, guest, answers, sent) : undefined,
  ].filter((fault) => fault !== undefined)
  return { statuses, ...faults.length > 0 && { wrong: [...new Set(faults)].join('; ') } }
}

function foreignOf(text: string, { canary, role }: FuzzGuest): string | undefined {
  const foreign = foreignCanaries(text, role === 'known' ? canary : '')
  return foreign.length === 0 ? undefined : `another instance's bytes: ${foreign.join(', ')}`
}

function wrongAnswer({ status, headers, body }: WireAnswer, guest: FuzzGuest): string | undefined {
  const is = (name: string) => headers.get(name)
  if (!STATUSES[guest.role].includes(status)) return `status ${String(status)} to a guest that is ${guest.role}`
  const strange = [...headers.keys()].filter((name) => !HEADERS.has(name))
  if (strange.length > 0) return `a header that is not in the contract: ${strange.join(', ')}`
  if (!DATE.test(is('date') ?? '')) return 'no Date'
  if (is('retry-after') !== (status === 503 ? '1' : undefined)) return `Retry-After: ${String(is('retry-after'))} with ${String(status)}`
  if ((is('allow') !== undefined) !== (status === 405) && !(status === 200 && body === '')) return `Allow: ${String(is('allow'))} with ${String(status)}`
  if (status === 403 || status === 405) return body === '' && is('content-length') === '0' ? undefined : `a body with ${String(status)}`
  if (!PAGES.has(status)) return undefined
  const isPage = is('content-type') === 'text/html' && (body === '' || body.includes(`<title>${String(status)} - `))
  return isPage || is('content-length') === '0' ? undefined : `not the page of ${String(status)}`
}

function wrongCount({ statuses, leading = 0, mostAnswers = Infinity, bytes }: Input, { role }: FuzzGuest, answers: readonly WireAnswer[], { plan }: Sent): string | undefined {
  const told = answers.map(({ status }) => status)
  if (statuses !== undefined && role === 'known' && plan.cutAt === undefined && told.some((status) => status !== 503) && told.join() !== statuses.join()) return `answered ${told.join()}, not ${statuses.join()}`
  if (role === 'known' && plan.cutAt === undefined && !told.includes(503) && (told.length < leading || told.slice(0, leading).some((status) => status !== 200))) return `${told.join()} to ${String(leading)} good requests and more`
  if (told.length > mostAnswers) return `${String(told.length)} answers to ${String(mostAnswers)} requests: ${told.join()}`
  const said = bytes.slice(0, plan.cutAt)
  if (told.length === 0 && plan.then === 'end' && /[^\r\n]/.test(said)) return 'no answer'
  return undefined
}

function wrongContent({ target, bytes }: Input, guest: FuzzGuest, answers: readonly WireAnswer[], { plan }: Sent): string | undefined {
  for (const { status, headers, body } of answers) {
    if (headers.has(TTL) && !guest.ownsToken && !bytes.includes('PUT')) return 'a token was taken that is not this guest\'s'
    if (status !== 200 || (guest.role === 'known' && guest.says(body))) continue
    const isEmpty = body === '' && ((guest.role === 'known' && bytes.includes('HEAD')) || headers.has('allow'))
    const isToken = headers.has(TTL) && bytes.includes('PUT') && /^[!-~]{16,4096}$/.test(body)
    if (!isEmpty && !isToken) return `a body that ${guest.role === 'known' ? 'no path of this guest has' : 'needs a token'}: ${JSON.stringify(body.slice(0, 100))}`
  }
  const [first] = answers
  if (target === undefined || first === undefined || guest.role !== 'known' || plan.cutAt !== undefined) return undefined
  const said = guest.said(target)
  const isRefusedByParser = !/^\/[!-~]*$/.test(target) || target.length > 16_000
  if (first.status === 200 && said !== first.body) return 'another path\'s body'
  if (first.status === 404 && typeof said === 'string') return '404 for what is there'
  if (first.status === 400 && said !== null && !isRefusedByParser) return '400 for a target that is none of that'
  return undefined
}
