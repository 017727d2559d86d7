/**
 * Session tokens (EC2's IMDSv2; contract D1 to D4). A token is stateless: a MAC protects its network, its instance and
 * its time of expiry, and no table keeps them. So it is valid on every listener and after a restart, and minting costs
 * no memory. It is bound to the instance and not to the address: another instance that gets the address cannot use it
 * (E3).
 *
 * A token has 40 bytes, in base64url with padding like EC2's tokens: 4 bytes for the key's id, 4 for the time of expiry
 * (seconds since 1970 modulo 2^32, big-endian), and 32 for the HMAC-SHA-256 of a label, the network, the instance's id and the
 * first 8 bytes.
 */
import { LRUCache } from 'lru-cache'
import { createHash, createHmac, timingSafeEqual } from 'node:crypto'
import type { Parsed } from '../../metadata/parsed.ts'

export const MAX_TTL_SECONDS = 21_600
export const KEY_BYTES = 32

const FORM = /^[A-Za-z0-9_-]{54}==$/
const HEAD_BYTES = 8
/**
 * The most verified tokens that are remembered, so that their MAC is not computed again. An entry takes some 200 bytes.
 */
const MAX_REMEMBERED = 4_096

interface Key {
  readonly id: number
  readonly secret: Uint8Array
}
interface VerifiedToken {
  readonly network: string
  readonly instance: string
  readonly endSeconds: number
}

/**
 * Mints and verifies with keys of 32 bytes. The first mints, all verify: keys rotate with an overlap of
 * MAX_TTL_SECONDS.
 */
export class Tokens {
  readonly #keys: readonly Key[]
  readonly #nowSeconds: () => number
  readonly #verified = new LRUCache<string, VerifiedToken>({ max: MAX_REMEMBERED })

  /** `nowSeconds`: since 1970, from `tokenTime`. Throws without a key. */
  constructor(secrets: readonly Uint8Array[], nowSeconds: () => number) {
    if (secrets.length === 0) throw new RangeError('session tokens need a key')
    this.#keys = secrets.map((secret) => ({
      id: createHash('sha256').update('imds token key id').update(secret).digest().readUInt32BE(0),
      secret,
    }))
    this.#nowSeconds = nowSeconds
  }

  /** A token for an instance on a network: 56 characters. */
  mint(network: string, instance: string, ttlSeconds: number): string {
    const key = this.#keys[0]!
    const token = Buffer.allocUnsafe(HEAD_BYTES)
    token.writeUInt32BE(key.id, 0)
    token.writeUInt32BE((Math.floor(this.#nowSeconds()) + ttlSeconds) >>> 0, 4)
    return `${Buffer.concat([token, mac(key, network, instance, token)]).toString('base64url')}==`
  }

  /** The seconds that a token has left, at least 1; undefined if it is not valid for this instance and network. */
  verify(token: string, network: string, instance: string): number | undefined {
    let verified = this.#verified.get(token)
    if (verified === undefined) {
      verified = this.#check(token, network, instance)
      if (verified === undefined) return undefined
      this.#verified.set(token, verified)
    }
    if (verified.network !== network || verified.instance !== instance) return undefined
    const left = (verified.endSeconds - Math.floor(this.#nowSeconds())) >>> 0
    // an expired token, and one of a clock that was ahead, have far more left
    return left > 0 && left <= MAX_TTL_SECONDS ? left : undefined
  }

  get remembered(): number {
    return this.#verified.size
  }

  #check(token: string, network: string, instance: string): VerifiedToken | undefined {
    if (!FORM.test(token)) return undefined
    const bytes = Buffer.from(token, 'base64url')
    const head = bytes.subarray(0, HEAD_BYTES)
    const key = this.#keys.find(({ id }) => id === head.readUInt32BE(0))
    if (key === undefined || !timingSafeEqual(bytes.subarray(HEAD_BYTES), mac(key, network, instance, head)))
      return undefined
    return { network, instance, endSeconds: head.readUInt32BE(4) }
  }
}

/**
 * The time of tokens, in seconds since 1970: the wall clock at the start, advanced by a monotonic clock. So setting the
 * wall clock later neither expires a token early nor makes one valid again. The clocks of hypervisors that share keys
 * must agree when their daemons start.
 */
export function tokenTime(wallMs: () => number, steadyMs: () => number): () => number {
  const offsetMs = wallMs() - steadyMs()
  return () => (offsetMs + steadyMs()) / 1000
}

/**
 * Computes the MAC. Names of networks and ids of instances contain no line feed, so no two pairs give the same text.
 */
function mac({ secret }: Key, network: string, instance: string, head: Uint8Array): Buffer {
  return createHmac('sha256', secret).update(`imds session token\n${network}\n${instance}\n`).update(head).digest()
}

/**
 * The lifetime in seconds that a PUT requests; undefined if there is none, or it is not allowed (contract D1).
 * Node joins repeated headers with a comma, so their value is not a number.
 */
export function parseTtl(header: string | undefined): number | undefined {
  if (header === undefined || !/^[0-9]{1,9}$/.test(header)) return undefined
  const ttl = Number(header)
  return ttl >= 1 && ttl <= MAX_TTL_SECONDS ? ttl : undefined
}

/** Parses the keys of a file. A fault never contains a part of the text. */
export function parseTokenKeys(text: string): Parsed<readonly Uint8Array[], string> {
  const keys = text
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '')
    .map((line) => Buffer.from(line, 'base64'))
  if (keys.length > 0 && keys.every((key) => key.length === KEY_BYTES)) return { ok: true, value: keys }
  return {
    ok: false,
    faults: [
      'must have 32 random bytes in base64 on each line (openssl rand -base64 32): ' +
        'the first key mints tokens, and all keys verify them',
    ],
  }
}
