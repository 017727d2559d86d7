/**
 * Finds the guest of an address or a link: in the view, or in the store if the view has none. While `firewallWait` says
 * why no guest is answered, there is none.
 */
import type { Config } from './config.ts'
import { linkOf } from './firewall/link.ts'
import type { GuestFinder } from './guest/identify.ts'
import { describeFirewallWait } from './listeners.ts'
import { UNKNOWN } from '../metadata/address.ts'
import { LinkIndex } from './view/link-index.ts'
import type { FoundInstance, View } from './view/view.ts'

export class ViewGuestFinder implements GuestFinder {
  readonly #view: View
  /** Undefined: there are no link-local listeners. */
  readonly #links: LinkIndex | undefined
  #lookUp: GuestFinder['lookUp'] = () => undefined
  /** Why no guest is answered now, or undefined. */
  firewallWait: string | undefined

  constructor(config: Config, view: View) {
    this.#view = view
    if (config.linkLocal.length > 0)
      this.#links = new LinkIndex(view, (one) => {
        const link = linkOf(config.firewall.link, one)
        return link.ok ? link.value : undefined
      })
    this.firewallWait = config.needsFirewall ? describeFirewallWait(config.listen) : undefined
  }

  /** Sets the function that looks up unknown peers. */
  setLookUp(lookUp: GuestFinder['lookUp']): void {
    this.#lookUp = lookUp
  }

  /** Updates the links of an instance that the view has changed. */
  updateLinks(id: string): void {
    this.#links?.update(id)
  }

  find(network: string, address: string): FoundInstance {
    return this.firewallWait === undefined ? this.#view.find(network, address) : UNKNOWN
  }

  findByLink(network: string, link: string): FoundInstance {
    return this.firewallWait === undefined ? (this.#links?.find(network, link) ?? UNKNOWN) : UNKNOWN
  }

  lookUp(network: string, address: string): ReturnType<GuestFinder['lookUp']> {
    return this.firewallWait === undefined ? this.#lookUp(network, address) : undefined
  }
}
