/**
 * The versions of HTTP that imds accepts: 1.0 and 1.1. Node's parser also accepts 2.0, 0.9, and a request line without
 * a version, which it reads as 0.9. It parses headers and a body after each of them (issue 877 of llhttp).
 */
import type { IncomingMessage, RequestListener, Server } from 'node:http'

/** Whether imds accepts a version of HTTP, as IncomingMessage.httpVersion has it. */
export function isAcceptedVersion(httpVersion: string): boolean {
  return httpVersion === '1.1' || httpVersion === '1.0'
}

/** The response with status 400 to a request of another version. `headers`: more than those of the body. */
export interface VersionRefusal {
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
