/**
 * Refusals: the expected failures of a request, each with its status. The names are those that clients of the API know
 * (docs/api.md#errors). A body is `{"error_name": ..., "errors": [...], "details": [...], "request_id": ...}`. `errors`
 * is for people, and never empty, because Libcloud reads its first element. `details` says the same for programs, in
 * the same order.
 */
import { escapeControls } from '../../runtime/terminal.ts'
import { kindOf } from './ids.ts'
import { withArticle, type Kind } from './resources.ts'
import type { Quota } from '../../limits/rate-limit-headers.ts'

const STATUS = {
  bad_request: 400,
  unauthorized: 401,
  forbidden: 403,
  account_limit_reached: 403,
  account_not_active: 403,
  account_not_verified: 403,
  insufficient_scope: 403,
  resource_not_found: 404,
  method_not_allowed: 405,
  request_timeout: 408,
  resource_conflict: 409,
  gone: 410,
  precondition_failed: 412,
  payload_too_large: 413,
  unsupported_media_type: 415,
  range_not_satisfiable: 416,
  unprocessable_entity: 422,
  too_many_requests: 429,
  header_fields_too_large: 431,
  internal_server_error: 500,
  not_implemented: 501,
  insufficient_capacity: 503,
  service_unavailable: 503,
} as const

/** The name of a refusal, `error_name` in its body. */
export type RefusalName = keyof typeof STATUS
export const REFUSAL_NAMES = Object.keys(STATUS) as readonly RefusalName[]

/** What can be wrong with a field, or with an id: `code` of a detail (docs/api.md#errors). */
export const FIELD_CODES = [
  'missing',
  'wrong_type',
  'not_allowed',
  'out_of_range',
  'too_short',
  'too_long',
  'malformed',
  'does_not_exist',
  'wrong_kind',
  'not_available',
  'unchangeable',
] as const
/** The code of a detail: one of FIELD_CODES, or the name of the refusal if no field is wrong. */
export type DetailCode = (typeof FIELD_CODES)[number] | RefusalName

/**
 * What is wrong. `field`: the path in the body such as `servers.0.server`, or the name of a parameter; null: it is
 * about the whole request.
 */
export interface Detail {
  readonly field: string | null
  readonly code: DetailCode
  readonly message: string
}

/** The bounded queues of a process. When one is full, requests get 503. */
export const SHED_QUEUES = ['reads', 'changes', 'tokens', 'bodies'] as const
export type ShedQueue = (typeof SHED_QUEUES)[number]

/**
 * Optional parts of a refusal. `retrySeconds`: when to try again. `quota`: the rate limit that was reached.
 * `tag`: the present entity tag of the resource. `shed`: the bound that was reached. `challenge`: `WWW-Authenticate`.
 * `oauthError`: `error` of OAuth in the body.
 */
export interface RefusalOptions {
  readonly shed?: ShedQueue
  readonly retrySeconds?: number
  readonly quota?: Quota
  readonly tag?: string
  readonly challenge?: string
  readonly oauthError?: string
}

/**
 * The longest text of a refusal, in UTF-16 units. Longer texts keep their head and their last 97 units: they have
 * parts of the request, which may be long.
 */
const [MAX_TEXT, TEXT_END] = [300, 97]
const MAX_TEXTS = 100

/**
 * A refusal: an expected failure, with all of its faults. Routes, hooks and changes throw it: a change is rolled back,
 * and http/server.ts makes the response. A text alone is about the whole request. Long texts are cut in the middle, and
 * control characters are escaped; of more than 101 faults the first 100 are named.
 */
export class Refusal<Name extends RefusalName = RefusalName> extends Error {
  override readonly name: Name
  readonly details: readonly [Detail, ...Detail[]]
  readonly options: RefusalOptions

  constructor(name: Name, faults: readonly (string | Detail)[], options: RefusalOptions = {}) {
    const named = faults.length > MAX_TEXTS + 1 ? [...faults.slice(0, MAX_TEXTS), 'and more'] : faults
    const details = named.map((fault): Detail => {
      const { field, code, message } = typeof fault === 'string' ? { field: null, code: name, message: fault } : fault
      return { field: field && printable(field), code, message: printable(message) }
    }) as [Detail, ...Detail[]]
    super(details[0].message)
    this.name = name
    this.details = details
    this.options = options
  }
}

/** Makes a refusal of the faults that are given one by one. */
export function refuse<Name extends RefusalName>(
  name: Name,
  ...faults: [string | Detail, ...(string | Detail)[]]
): Refusal<Name> {
  return new Refusal(name, faults)
}

/** Refuses all faults at once, if there are any. */
export function refuseAny(name: RefusalName, faults: readonly (string | Detail)[]): void {
  if (faults.length > 0) throw new Refusal(name, faults)
}

/** Makes the refusal of a request for which a bound leaves no room. It may succeed later. */
export function shed(queue: ShedQueue, message: string, retrySeconds?: number): Refusal {
  return new Refusal('service_unavailable', [message], {
    shed: queue,
    ...(retrySeconds !== undefined && { retrySeconds }),
  })
}

/**
 * Something that is wrong. `field` undefined: with the whole request. `message` is a whole text, which names the field.
 */
export function fieldFault(field: string | undefined, code: DetailCode, message: string): Detail {
  return { field: field ?? null, code, message }
}

function printable(text: string): string {
  return cut(escapeControls(cut(text)))
}

function cut(text: string): string {
  return text.length > MAX_TEXT
    ? `${text.slice(0, MAX_TEXT - TEXT_END - 3).toWellFormed()}...${text.slice(-TEXT_END).toWellFormed()}`
    : text
}

/**
 * The refusal of a resource that does not exist, or that belongs to another account: a caller cannot tell which.
 * `what`: as the text names it.
 */
export function notFound(what: string): Refusal {
  return refuse('resource_not_found', `${what} does not exist`)
}

/** The refusal of an id, in the path of a request, of a resource that does not exist or belongs to another account. */
export function noSuch(kind: Kind, id: string): Refusal {
  const hint = otherKind(kind, id)
  const message = `the ${kind} ${id} does not exist${hint ?? ''}`
  return refuse('resource_not_found', hint === undefined ? message : fieldFault(undefined, 'wrong_kind', message))
}

/**
 * The fault of an id, or a handle, that a field names. `list`: the path of the collection that has what the caller may
 * name. `reason`: another one.
 */
export function noSuchIn(field: string, kind: Kind, id: string, list: string, reason = ''): Detail {
  const hint = otherKind(kind, id)
  return fieldFault(
    field,
    hint === undefined ? 'does_not_exist' : 'wrong_kind',
    `${field}: ${id} does not exist${reason}${hint ?? `: GET ${list} lists them`}`,
  )
}

/** For an id that has the prefix of another kind. It says nothing about whether that exists. */
function otherKind(kind: Kind, id: string): string | undefined {
  const other = kindOf(id)
  return other === undefined || other === kind ? undefined : `: ${id} is the id of ${withArticle(other)}`
}

export function statusOf(name: RefusalName): number {
  return STATUS[name]
}

/** The body of a refusal, as JSON has it. */
export interface RefusalBody {
  readonly error_name: RefusalName
  readonly errors: readonly string[]
  readonly details: readonly Detail[]
  readonly request_id: string
}

/** The body of a refusal of a request. That of a token, or of a request for one, has the fields of OAuth too. */
export function bodyOf({ name, details, options: { oauthError } }: Refusal, requestId: string): RefusalBody {
  const oauth = oauthError !== undefined && { error: oauthError, error_description: details[0].message }
  return { ...oauth, error_name: name, errors: details.map(({ message }) => message), details, request_id: requestId }
}
