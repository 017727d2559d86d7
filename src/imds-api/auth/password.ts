/**
 * Passwords of users, stored as scrypt hashes. A hash is a PHC string, `$scrypt$ln=15,r=8,p=3$SALT$KEY`. It contains
 * its cost, so old hashes stay valid when new ones get another cost.
 */
import { randomBytes, scrypt, timingSafeEqual } from 'node:crypto'
import { promisify } from 'node:util'

/**
 * The cost of a hash: 2^ln * r * 128 bytes of memory, and p times the time. 32 MiB: one of the costs that OWASP's
 * Password Storage Cheat Sheet recommends.
 */
const COST = { ln: 15, r: 8, p: 3 }
type Cost = Readonly<typeof COST>
interface Hash {
  readonly cost: Cost
  readonly salt: Buffer
  readonly key: Buffer
}

const SALT_BYTES = 16
const KEY_BYTES = 32
/**
 * The most bytes of memory of a hash. A region file may have hashes of other programs, and every sign-in takes the
 * memory of one.
 */
const MAX_MEMORY_BYTES = 1 << 26
const MIN_LOG2_COST = 10
const MAX_PARALLELIZATION = 16

const FORM =
  /^\$scrypt\$ln=(?<ln>[1-9]\d?),r=(?<r>[1-9]\d?),p=(?<p>[1-9]\d?)\$(?<salt>[A-Za-z0-9+/]{11,86})\$(?<key>[A-Za-z0-9+/]{43,86})$/
/** A hash of the usual cost, for a user who has none. */
const DUMMY_HASH: Hash = { cost: COST, salt: Buffer.alloc(SALT_BYTES), key: Buffer.alloc(KEY_BYTES) }

const derive = promisify(scrypt) as (password: string, salt: Buffer, length: number, options: object) => Promise<Buffer>

/** True for text that may be a password: 8 to 72 characters. */
export function isPassword(text: string): boolean {
  const length = Array.from(text).length // in code points
  return length >= 8 && length <= 72
}

export async function hashPassword(password: string): Promise<string> {
  const salt = randomBytes(SALT_BYTES)
  const key = await compute(password, { cost: COST, salt }, KEY_BYTES)
  return `$scrypt$ln=${COST.ln},r=${COST.r},p=${COST.p}$${encode(salt)}$${encode(key)}`
}

/**
 * True if a password matches a hash. Without a hash (the user is unknown, or has no password) it is false, after the
 * time of a hash with the usual cost.
 */
export async function verifyPassword(password: string, text: string | undefined): Promise<boolean> {
  const hash = text === undefined ? undefined : parseHash(text)
  const { cost, salt, key } = hash ?? DUMMY_HASH
  return timingSafeEqual(await compute(password, { cost, salt }, key.length), key) && hash !== undefined
}

/** True for a hash that `verifyPassword` can check. */
export function isPasswordHash(text: string): boolean {
  return parseHash(text) !== undefined
}

function parseHash(text: string): Hash | undefined {
  const { groups } = FORM.exec(text) ?? {}
  if (groups === undefined) return undefined
  const cost = { ln: Number(groups['ln']), r: Number(groups['r']), p: Number(groups['p']) }
  if (cost.ln < MIN_LOG2_COST || memoryOf(cost) > MAX_MEMORY_BYTES || cost.p > MAX_PARALLELIZATION) return undefined
  return { cost, salt: Buffer.from(groups['salt']!, 'base64'), key: Buffer.from(groups['key']!, 'base64') }
}

function memoryOf({ ln, r }: Cost): number {
  return 128 * r * 2 ** ln
}

function compute(password: string, { cost, salt }: Omit<Hash, 'key'>, length: number): Promise<Buffer> {
  return derive(password, salt, length, { N: 2 ** cost.ln, r: cost.r, p: cost.p, maxmem: 2 * memoryOf(cost) })
}

function encode(bytes: Buffer): string {
  return bytes.toString('base64').replace(/=+$/, '')
}
