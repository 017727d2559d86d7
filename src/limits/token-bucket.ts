/**
 * A token bucket: a rate limit that allows bursts. It begins full.
 *
 * All times are milliseconds of one monotonic clock. There is no timer: each call first adds the tokens gained since
 * the last call.
 */

export class TokenBucket {
  readonly #burst: number
  readonly #perSecond: number
  #spent = 0
  #atMs = 0

  constructor(burst: number, perSecond: number) {
    this.#burst = burst
    this.#perSecond = perSecond
  }

  /**
   * Whether the bucket has a whole token. `burst`: the size of the bucket for this call, if it is larger than usual.
   */
  hasToken(nowMs: number, burst = this.#burst): boolean {
    this.#refill(nowMs)
    return this.#spent <= burst - 1
  }

  /** Takes tokens out, even if the bucket has fewer. */
  take(nowMs: number, tokens: number): void {
    this.#refill(nowMs)
    this.#spent += tokens
  }

  /** Takes all tokens, and those of the next `ms`. */
  takeAll(nowMs: number, ms: number): void {
    this.#refill(nowMs)
    this.#spent = Math.max(this.#spent, this.#burst + (ms / 1000) * this.#perSecond)
  }

  /** Takes a token. False: the bucket has none. */
  tryTake(nowMs: number): boolean {
    const hasToken = this.hasToken(nowMs)
    if (hasToken) this.#spent += 1
    return hasToken
  }

  /** The whole tokens in the bucket. */
  left(nowMs: number): number {
    this.#refill(nowMs)
    return Math.max(0, Math.floor(this.#burst - this.#spent))
  }

  isFull(nowMs: number): boolean {
    this.#refill(nowMs)
    return this.#spent === 0
  }

  #refill(nowMs: number): void {
    this.#spent = Math.max(0, this.#spent - ((nowMs - this.#atMs) / 1000) * this.#perSecond)
    this.#atMs = nowMs
  }
}
