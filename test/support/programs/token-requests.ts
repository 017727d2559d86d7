/** Requests to imds-api's token endpoint, as applications send them. */
import { Secret, TOTP } from 'otpauth'
import { withoutDetails } from '../error-bodies.ts'
import { APPLICATION, TOTP_SECRET } from '../fixtures/region.ts'
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
  return `10.9.${addresses >> 8}.${addresses & 255}`
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

/** Sign-ins of users, whose one-time passwords are those of TOTP_SECRET at the time of a clock. */
export interface SignInRequests {
  readonly post: ReturnType<typeof tokenRequests>
  readonly codeAt: (ms: number) => string
  readonly signIn: (username: string, password: string, from?: From) => Promise<TokenAnswer>
  /** Moves the clock to a step whose code was not used. */
  readonly freshCode: () => string
}

/** Builds the requests. */
export function signInRequests(api: Pick<TestApi, 'server'>, clock: { nowMs: number }): SignInRequests {
  const post = tokenRequests(api)
  const codeAt = (ms: number) => new TOTP({ secret: Secret.fromBase32(TOTP_SECRET) }).generate({ timestamp: ms })
  return {
    post,
    codeAt,
    signIn: (username: string, password: string, from?: From) =>
      post({ grant_type: 'password', username, password }, from),
    freshCode: () => {
      clock.nowMs += 120_000
      return codeAt(clock.nowMs)
    },
  }
}
