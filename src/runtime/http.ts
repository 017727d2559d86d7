/** What HTTP servers share: the versions that imds accepts, entity tags, settings of Fastify. */
import type { IncomingMessage, RequestListener, Server } from 'node:http'

/**
 * Whether imds accepts a version of HTTP, as IncomingMessage.httpVersion has it: 1.0 and 1.1. Node's parser also accepts
 * 2.0, 0.9, and a request line without a version, which it reads as 0.9. It parses headers and a body after each of them
 * (issue 877 of llhttp).
 */
export function isAcceptedVersion(httpVersion: string): boolean {
  return httpVersion === '1.1' || httpVersion === '1.0'
}

/** The response with status 400 to a request of another version. `headers`: more than those of the body. */
interface VersionRefusal {
  readonly contentType: string
  readonly body: string
  readonly headers?: Readonly<Record<string, string>>
}

const TO_OPERATORS: VersionRefusal = {
  contentType: 'application/json',
  body: '{"error":"the version of HTTP is not 1.0 or 1.1"}',
}
const notCounted = () => undefined

/** `refuseOtherVersions` for a listener of operators. */
export function refuseOtherVersionsOfOperators(server: Pick<Server, 'listeners' | 'removeAllListeners' | 'on'>): void {
  refuseOtherVersions(server, () => TO_OPERATORS, notCounted)
}

/**
 * Refuses requests of other versions and closes their connections. The listeners that the server has now get only the
 * other requests. `onRefusal` is called for each.
 */
export function refuseOtherVersions(
  server: Pick<Server, 'listeners' | 'removeAllListeners' | 'on'>,
  refusalOf: (request: IncomingMessage) => VersionRefusal,
  onRefusal: () => void,
): void {
  const listeners = server.listeners('request') as RequestListener[]
  server.removeAllListeners('request')
  server.on('request', (request, response) => {
    if (isAcceptedVersion(request.httpVersion)) {
      for (const listener of listeners) listener(request, response)
      return
    }
    onRefusal()
    const { contentType, body, headers } = refusalOf(request)
    response
      .writeHead(400, {
        'Content-Type': contentType,
        'Content-Length': Buffer.byteLength(body),
        ...headers,
        Connection: 'close',
      })
      .end(body)
  })
}

/**
 * For servers whose routes have no schemas: keeps Fastify from loading its schema compilers, which would take memory
 * and 20 ms of every start.
 */
export const NO_SCHEMA_COMPILERS = {
  compilersFactory: { buildValidator: failToCompile, buildSerializer: failToCompile },
}

function failToCompile(): never {
  throw new Error('no route has a schema')
}

/** Whether `If-None-Match` names a tag: the weak comparison (RFC 9110, 8.8.3 and 13.1). Our tags have no commas. */
export function namesWeakly(ifNoneMatch: string, tag: string): boolean {
  return names(ifNoneMatch, [tag, `W/${tag}`], tag)
}

/** Whether `If-Match` names a tag: the strong comparison. */
export function namesStrongly(ifMatch: string, tag: string): boolean {
  return names(ifMatch, [tag], tag)
}

/** Looks only at elements that contain the tag: splitting a list of 15,000 commas would cost more than a request. */
function names(header: string, forms: readonly string[], tag: string): boolean {
  if (header.trim() === '*') return true
  let at = header.indexOf(tag)
  while (at !== -1) {
    const comma = header.indexOf(',', at)
    const end = comma === -1 ? header.length : comma
    if (forms.includes(header.slice(header.lastIndexOf(',', at) + 1, end).trim())) return true
    at = header.indexOf(tag, end)
  }
  return false
}
