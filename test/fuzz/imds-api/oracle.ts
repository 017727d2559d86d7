/** Decides whether a response to a request follows the OpenAPI document, and whether it may be sent to its reader. */
import { DocumentValidator } from '../../support/openapi-validator.ts'
import { secretOf } from '../../support/fixtures/region.ts'
import type { ApiHost } from './host.ts'
import { MARK } from './nonsense.ts'
import type { Identity } from './population.ts'
import { ACCOUNTS } from './region.ts'
import { plain, type ApiRequest, type ApiResponse } from './send.ts'

/** Returns what is wrong with a response; undefined: nothing. `isMutated`: the request may be wrong in any way. */
export type Oracle = (
  request: ApiRequest,
  isMutated: boolean,
  sender: Identity,
  response: ApiResponse,
) => string | undefined

/** Statuses that no operation has to name: the request did not arrive at one. */
const UNREACHED = [404, 405, 431]
/** Statuses of paths that the document does not have, beside those above: of the pages of the document, for example. */
const UNLISTED = [200, 301, 302, 304, 400, 401, 403, 412, 413, 415, 416, 422, 501]

/** Builds the oracle of a host. */
export function buildOracle({ document, lanes }: Pick<ApiHost, 'document' | 'lanes'>): Oracle {
  const validator = new DocumentValidator(document)
  const tokens = lanes.flatMap(({ identities }) => identities.flatMap(({ token }) => token ?? []))
  return (request, isMutated, sender, response) => {
    const { method, headers } = request
    const target = plain(request.target)
    const { status, text } = response
    const isListed = validator.has(method, target)
    const hasOwnToken = headers['Authorization'] === `Bearer ${sender.token ?? ''}` || sender.token === undefined
    const faults = [
      status === 500 ? '500' : undefined,
      text.includes('"error_name":"service_unavailable"') ? 'service_unavailable' : undefined,
      isListed && !(isMutated && UNREACHED.includes(status))
        ? validator.faultsOf(method, target, response).join('; ')
        : undefined,
      !isListed && ![...UNREACHED, ...UNLISTED].includes(status) ? 'a status that no such path has' : undefined,
      ...foreignTexts(sender).map((marker) =>
        text.includes(marker) ? `text of another account: ${marker}` : undefined,
      ),
      status < 300 && text.includes(MARK) ? 'a field that no request sets' : undefined,
      [...tokens, secretOf('')].some((secret) => text.includes(secret)) ? 'a secret' : undefined,
      isListed && target.startsWith('/1.0/') && hasOwnToken ? wrongRight(method, isMutated, sender, status) : undefined,
    ].filter((fault) => fault !== undefined && fault !== '')
    return faults.length === 0 ? undefined : `status ${status}: ${faults.join('; ')}`
  }
}

function foreignTexts({ account }: Identity): string[] {
  return ACCOUNTS.filter(({ id }) => id !== account?.id).map(({ marker }) => marker)
}

function wrongRight(method: string, isMutated: boolean, { may, name }: Identity, status: number): string | undefined {
  if (may === 'change') return status === 401 ? `401 for the ${name}` : undefined
  const isRead = method === 'GET' || method === 'HEAD'
  const expected = may === 'read' ? (isRead ? undefined : 403) : may
  // a request that cannot be decoded is refused before anything else
  return expected === undefined || status === expected || (isMutated && [400, ...UNREACHED].includes(status))
    ? undefined
    : `a request of the ${name} needs ${expected}`
}
