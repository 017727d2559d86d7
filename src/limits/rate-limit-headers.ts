/** The headers of a rate limit (draft-ietf-httpapi-ratelimit-headers-10). */

/** What a caller has left of a rate limit. `retrySeconds`: how long nothing is left, if `remaining` is 0. */
export interface Quota {
  readonly name: string
  readonly quota: number
  readonly windowSeconds: number
  readonly remaining: number
  readonly retrySeconds: number
}

/** `RateLimit-Policy`, the limit, and `RateLimit`, what is left of it. */
export function rateLimitHeaders({
  name,
  quota,
  windowSeconds,
  remaining,
  retrySeconds,
}: Quota): Readonly<Record<'RateLimit-Policy' | 'RateLimit', string>> {
  const until = remaining === 0 ? `;t=${retrySeconds}` : ''
  return {
    'RateLimit-Policy': `"${name}";q=${quota};w=${windowSeconds}`,
    RateLimit: `"${name}";r=${remaining}${until}`,
  }
}
