/** The private keys in records: which one signs, and the last ones that were parsed. */
import { createPrivateKey, type KeyObject } from 'node:crypto'
import type { Instance } from '../metadata/instance.ts'

type Keys = NonNullable<Instance['identity']>['keys']

/** The most parsed keys. To parse one of RSA takes a part of the time of a signature, on the thread of all guests. */
const MAX_PARSED_KEYS = 256

export class AccountKeys {
  readonly #parsed = new Map<string, KeyObject>()

  /**
   * The key that signs at a time (milliseconds since 1970): the latest that has begun. If none has, the first one: the
   * clock of this hypervisor is behind. Throws an error without a part of the key if the key is none.
   */
  signing(keys: Keys, nowMs: number): KeyObject {
    const byTime = keys.toSorted((a, b) => Date.parse(a.signsFrom) - Date.parse(b.signsFrom))
    const { privateKey } = byTime.findLast(({ signsFrom }) => Date.parse(signsFrom) <= nowMs) ?? byTime[0]!
    return this.#parsed.get(privateKey) ?? this.#parse(privateKey)
  }

  #parse(privateKey: string): KeyObject {
    let key
    try {
      key = createPrivateKey(privateKey)
    } catch {
      throw new Error("the record's identity key is not a private key in PEM")
    }
    if (this.#parsed.size === MAX_PARSED_KEYS) this.#parsed.clear()
    this.#parsed.set(privateKey, key)
    return key
  }
}
