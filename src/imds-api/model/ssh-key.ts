/** SSH keys of users: lines of authorized_keys without options. */
import { LINE_CHARACTER } from '../../metadata/identifiers.ts'
import type { Parsed } from '../../metadata/parsed.ts'
import { MAX_KEYS_OF_USER } from '../../metadata/schema.ts'

/** What `ssh -Q key-plain` lists, without ssh-dss, which OpenSSH 10 removed. */
const TYPES = [
  'ssh-ed25519',
  'sk-ssh-ed25519@openssh.com',
  'ecdsa-sha2-nistp256',
  'ecdsa-sha2-nistp384',
  'ecdsa-sha2-nistp521',
  'sk-ecdsa-sha2-nistp256@openssh.com',
  'ssh-rsa',
]
/** Of all keys of a user: the limit of each in a record (src/metadata/schema.ts). */
const MAX_LENGTH = 16_384
const LINE = new RegExp(`^(\\S+) ([A-Za-z0-9+/]+={0,2})(?: ${LINE_CHARACTER}*)?$`, 'u')

/**
 * Parses keys, one per line. Returns their lines, without the space around them and without empty ones, because clients
 * send whole files. Empty: no key. A fault continues the name of the field, and names the line if there are several.
 */
export function parseSshKeys(text: string): Parsed<string, string> {
  if (text.trim().length > MAX_LENGTH) return faulty(`must have at most ${MAX_LENGTH} characters`)
  const all = text.split('\n').map((line, i) => ({ line: line.trim(), number: i + 1 }))
  const keys = all.filter(({ line }) => line !== '')
  if (keys.length > MAX_KEYS_OF_USER)
    return faulty(`must have at most ${MAX_KEYS_OF_USER} keys, one per line, and has ${keys.length} lines`)
  const faults = keys.flatMap(({ line, number }) => {
    const fault = faultOf(line)
    return fault === undefined ? [] : [keys.length === 1 ? fault : `(line ${number}) ${fault}`]
  })
  return faults.length > 0 ? { ok: false, faults } : { ok: true, value: keys.map(({ line }) => line).join('\n') }
}

/**
 * What is wrong with a line. The base64 text must be exactly one key (RFC 4253, 6.6): parts, each after its length, up
 * to the last byte. The first part is the type.
 */
function faultOf(line: string): string | undefined {
  const [, type = '', base64 = ''] = LINE.exec(line) ?? []
  if (type === '') return 'must be one line of an authorized_keys file: type, base64 and a comment'
  if (!TYPES.includes(type)) return `must begin with a type of key: ${TYPES.join(', ')}`
  const parts = partsOf(Buffer.from(base64, 'base64'))
  if (parts === undefined || parts.length < 2) return 'must have the whole base64 text of a key'
  if (parts[0]!.toString('latin1') !== type)
    return `must have a key of the type ${type}: its base64 text is a key of another type`
  return undefined
}

function faulty(fault: string): Parsed<string, string> {
  return { ok: false, faults: [fault] }
}

/** The parts of a public key, each of which follows its length. Undefined: they do not end with the last byte. */
function partsOf(key: Buffer): readonly Buffer[] | undefined {
  const parts: Buffer[] = []
  for (let at = 0; at < key.length;) {
    const end = at + 4 > key.length ? Infinity : at + 4 + key.readUInt32BE(at)
    if (end > key.length) return undefined
    parts.push(key.subarray(at + 4, end))
    at = end
  }
  return parts
}
