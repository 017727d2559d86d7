/**
 * Refusals: the expected failures of a request, each with its status. The names are those that clients of the interface know
 * (docs/api.md#errors). A body is `{"error_name": ..., "errors": [...]}`; `errors` is never empty, because Libcloud reads its first element.
 */

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

/** What a refusal of an access token has besides: `WWW-Authenticate`, and `error` in the body. */
export interface Challenge { readonly header: string, readonly error: string | undefined }

/** A refusal. `errors`: what is wrong, for people; all of it at once. `retrySeconds`: when to try again, if that is known. */
export interface Refusal<Name extends RefusalName = RefusalName> {
  readonly kind: 'refused'
  readonly name: Name
  readonly errors: readonly [string, ...string[]]
  readonly retrySeconds?: number
  readonly challenge?: Challenge
}

/** The longest text of a refusal, in UTF-16 units, and how much of its end is left of a longer one. Texts have parts of the request, which may be long. */
const [TEXT_MAX, TEXT_END] = [300, 97]
/** The most texts of a refusal. */
const TEXTS_MAX = 100

/** Makes a refusal. */
export function refuse<Name extends RefusalName>(name: Name, ...errors: [string, ...string[]]): Refusal<Name> {
  return refuseAll(name, errors)
}

/** Makes a refusal of at least one fault. Long texts are cut in the middle; of more than 101 faults the first 100 are named. */
export function refuseAll<Name extends RefusalName>(name: Name, faults: readonly string[]): Refusal<Name> {
  const named = faults.length > TEXTS_MAX + 1 ? [...faults.slice(0, TEXTS_MAX), 'and more'] : faults
  return { kind: 'refused', name, errors: named.map(cut) as [string, ...string[]] }
}

function cut(text: string): string {
  return text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX - TEXT_END - 3).toWellFormed()}...${text.slice(-TEXT_END).toWellFormed()}` : text
}

/** The refusal of a resource that does not exist, or that belongs to another account: a caller cannot tell which. */
export function notFound(what: string): Refusal {
  return refuse('resource_not_found', `${what} does not exist`)
}

/** True if a result is a refusal. */
export function isRefusal(result: unknown): result is Refusal {
  return typeof result === 'object' && result !== null && (result as { kind?: unknown }).kind === 'refused'
}

/** The HTTP status of a refusal. */
export function statusOf(name: RefusalName): number {
  return STATUS[name]
}

/** The body of a refusal. That of an access token has the fields of OAuth too. */
export function bodyOf({ name, errors, challenge }: Refusal): { readonly error_name: RefusalName, readonly errors: readonly string[] } {
  return { ...challenge?.error !== undefined && { error: challenge.error, error_description: errors[0] }, error_name: name, errors }
}
