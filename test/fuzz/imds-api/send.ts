/** A request to the API as it is sent, what comes back, and the command that repeats it. */
import { request as send, type Agent } from 'node:http'
import { escaped } from '../dice.ts'

/** A request. `target` and `body` are bytes (dice.ts). */
export interface ApiRequest {
  readonly method: string
  readonly target: string
  readonly headers: Readonly<Record<string, string>>
  readonly body?: string
}

/** A response. `isWhole`: it has ended; a stream of events never does. */
export interface ApiResponse {
  readonly status: number
  readonly headers: Readonly<Record<string, unknown>>
  readonly text: string
  readonly isWhole: boolean
}

/** No request takes longer, but those that `waits`. */
const PATIENCE_MS = 20_000
/** How long a request that waits is kept open. */
const WAIT_MS = 150

/** True for a request that may wait: for a state, or for events. */
export function waits({ method, target, headers }: ApiRequest): boolean {
  if (method !== 'GET' && method !== 'HEAD') return false
  const [path] = plain(target).split('?', 1)
  return /\/wait\/?$/.test(path!) || (path!.includes('/events') && /event-stream/i.test(headers['Accept'] ?? ''))
}

/** A target without the escapes that it does not need: the router reads it so. */
export function plain(target: string): string {
  return target.replace(/%([0-9a-f]{2})/gi, (escape, code: string) => {
    const character = String.fromCharCode(parseInt(code, 16))
    return /[\w.~-]/.test(character) ? character : escape
  })
}

/** Sends a request. Undefined: a request that waits got no response within WAIT_MS. Rejects if any other gets none. */
export function sendRequest(baseUrl: string, one: ApiRequest, agent?: Agent): Promise<ApiResponse | undefined> {
  const { hostname, port } = new URL(baseUrl)
  const { method, target, headers, body } = one
  return new Promise((resolve, reject) => {
    const isPatient = !waits(one)
    const outgoing = send({
      ...{ hostname, port, method, path: target, agent, headers },
      ...(body !== undefined && { headers: { ...headers, 'Content-Length': String(body.length) } }),
    })
    const timer = setTimeout(
      () => {
        if (isPatient) reject(new Error(`no response within ${PATIENCE_MS} ms`))
        else resolve(undefined)
        outgoing.destroy()
      },
      isPatient ? PATIENCE_MS : WAIT_MS,
    )
    outgoing.on('error', (error) => {
      clearTimeout(timer)
      reject(error)
    })
    outgoing.on('response', (response) => {
      let text = ''
      const end = (isWhole: boolean) => {
        clearTimeout(timer)
        resolve({ status: response.statusCode!, headers: response.headers, text, isWhole })
      }
      response
        .setEncoding('utf8')
        .on('data', (part: string) => {
          text += part
        })
        .on('end', () => end(true))
        .on('close', () => end(response.complete))
        .on('error', () => undefined) // `close` follows
    })
    outgoing.end(body === undefined ? undefined : Buffer.from(body, 'latin1'))
  })
}

/** The command that repeats a request in bash. `$token` is in the place of the access token. */
export function curlOf(baseUrl: string, { method, target, headers, body }: ApiRequest): string {
  const options = Object.entries(headers).map(([name, value]) =>
    name === 'Authorization' && /^Bearer [\w-]+$/.test(value)
      ? '-H "Authorization: Bearer $token"'
      : `-H $${escaped(`${name}: ${value}`)}`,
  )
  return [
    `curl -si --path-as-is -X ${method}`,
    ...options,
    ...(body === undefined ? [] : [`--data-binary $${escaped(body)}`]),
    `$${escaped(baseUrl + target)}`,
  ].join(' ')
}
