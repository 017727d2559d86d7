/**
 * Places for requests that stay open for long, such as waits and streams: each account, and each of its clients, has a
 * limited number in this process. Beyond it a request is refused at once.
 */
import { ByOwner } from '../../limits/by-owner.ts'
import { refuse, type Refusal } from '../model/refusal.ts'

/** Whose place a request takes. */
export interface Holder {
  readonly accountId: string
  readonly requesterId: string
}

/** `beyond`: the refusal of a request for which there is no place. `onEnd` is called for each place that is left. */
export interface PlaceLimits<Reason> {
  readonly ofAccount: number
  readonly ofClient: number
  readonly beyond: Refusal
  readonly onEnd: (reason: Reason) => void
}

/** The refusal of open and new requests while this process stops. */
const STOPS = refuse('service_unavailable', 'this process stops: try again')

/** The open requests. `Item`: one of them. */
export class Places<Item, Reason> {
  readonly #limits: PlaceLimits<Reason>
  /** Those of each account. */
  readonly ofAccount = new ByOwner<Item>()
  readonly #ofClient = new ByOwner<Item>()
  #isClosed = false

  constructor(limits: PlaceLimits<Reason>) {
    this.#limits = limits
  }

  /** Takes a place for an item, or throws a refusal. Call the returned function once, to free the place. */
  take({ accountId, requesterId }: Holder, item: Item): (reason: Reason) => void {
    const { ofAccount, ofClient, beyond, onEnd } = this.#limits
    const client = `${accountId} ${requesterId}`
    if (this.#isClosed) throw STOPS
    if (this.ofAccount.countOf(accountId) >= ofAccount || this.#ofClient.countOf(client) >= ofClient) throw beyond
    this.ofAccount.add(accountId, item)
    this.#ofClient.add(client, item)
    return (reason) => {
      this.ofAccount.remove(accountId, item)
      this.#ofClient.remove(client, item)
      onEnd(reason)
    }
  }

  /** Refuses all further requests, because this process stops. */
  close(): void {
    this.#isClosed = true
  }
}
