/**
 * Places for requests that stay open for long, such as waits and streams: each account, and each of its clients, has a
 * limited number in this process. Beyond it a request is refused at once.
 */
import { refuse, type Refusal } from '../model/refusal.ts'

/** Whose place a request takes. */
export interface Holder {
  readonly accountId: string
  readonly requesterId: string
}

/** `beyond`: the refusal of a request for which there is no place. `ended` counts the places that were left. */
export interface PlaceLimits<Reason> {
  readonly ofAccount: number
  readonly ofClient: number
  readonly beyond: Refusal
  readonly ended: (reason: Reason) => void
}

/** The refusal of what is open, or is to be opened, while this process stops. */
const STOPS = refuse('service_unavailable', 'this process stops: try again')

export class Places<Reason> {
  readonly #limits: PlaceLimits<Reason>
  /** How many places are taken, by account, and by account and client. */
  readonly #taken = new Map<string, number>()
  #count = 0
  #isClosed = false

  constructor(limits: PlaceLimits<Reason>) {
    this.#limits = limits
  }

  /** How many places are taken. */
  get count(): number {
    return this.#count
  }

  /** Takes a place, or throws a refusal. What it returns leaves the place: call it once. */
  take({ accountId, requesterId }: Holder): (reason: Reason) => void {
    const { ofAccount, ofClient, beyond, ended } = this.#limits
    const keys = [accountId, `${accountId} ${requesterId}`] as const
    const [account, client] = keys
    if (this.#isClosed) throw STOPS
    if (this.#takenBy(account) >= ofAccount || this.#takenBy(client) >= ofClient) throw beyond
    for (const key of keys) this.#taken.set(key, this.#takenBy(key) + 1)
    this.#count++
    return (reason) => {
      for (const key of keys) {
        const left = this.#takenBy(key) - 1
        if (left > 0) this.#taken.set(key, left)
        else this.#taken.delete(key)
      }
      this.#count--
      ended(reason)
    }
  }

  /** Refuses all further requests, because this process stops. */
  close(): void {
    this.#isClosed = true
  }

  #takenBy(key: string): number {
    return this.#taken.get(key) ?? 0
  }
}
