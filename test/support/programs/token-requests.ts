/** Requests to imds-api's token endpoint, as applications send them. */
import { withoutDetails } from '../error-bodies.ts'
import { APPLICATION } from '../fixtures/region.ts'
import { basic, type TestApi } from './api.ts'

/** A response. Its body is without `details`. */
export interface TokenAnswer {
  readonly status: number
  readonly headers: Readonly<Record<string, unknown>>
  readonly body: Readonly<Record<string, unknown>>
}
/** Who sends a request. Default: APPLICATION, at an address of its own. */
export interface From {
  readonly client?: string
  readonly headers?: Readonly<Record<string, string>>
  readonly address?: string
}

let addresses = 0
/** An address that no other request comes from, so that no limit is reached by accident. */
export function newAddress(): string {
  addresses++
  return `10.9.${String(addresses >> 8)}.${String(addresses & 255)}`
}

/** Sends requests to the token endpoint of a server. */
export function tokenRequests({
  server,
}: Pick<TestApi, 'server'>): (body: object, from?: From) => Promise<TokenAnswer> {
  return async (body, { client = APPLICATION, headers = {}, address = newAddress() } = {}) => {
    const {
      statusCode,
      headers: answered,
      body: text,
    } = await server.inject({
      method: 'POST',
      url: '/token',
      remoteAddress: address,
      headers: { authorization: basic(client), ...headers },
      payload: body,
    })
    return { status: statusCode, headers: answered, body: withoutDetails(JSON.parse(text)) as Record<string, unknown> }
  }
}
