/**
 * Finds the guest of an address: in the view, or in the store if the view has none. If only the firewall separates
 * several networks, nobody is found while its rules are not confirmed.
 */
import type { Config } from './config.ts'
import type { GuestFinder } from './guest/identify.ts'
import { describeFirewallWait } from './listeners.ts'
import { UNKNOWN } from '../metadata/address.ts'
import type { FoundInstance, View } from './view/view.ts'

export class ViewGuestFinder implements GuestFinder {
  readonly #view: View
  #lookUp: GuestFinder['lookUp'] = () => undefined
  /** Undefined: the networks are separate without the firewall. */
  readonly #wait: string | undefined
  #areRulesFresh = () => false

  constructor(config: Config, view: View) {
    this.#view = view
    this.#wait = config.needsFirewall ? describeFirewallWait(config.listen) : undefined
  }

  /** Only the firewall separates the networks. */
  get isSeparatedByRules(): boolean {
    return this.#wait !== undefined
  }

  /** Why no guest is answered now, or undefined. */
  get firewallWait(): string | undefined {
    return this.#wait === undefined || this.#areRulesFresh() ? undefined : this.#wait
  }

  /** Sets the function that says whether rules were confirmed within the last seconds. */
  setFirewall(areRulesFresh: () => boolean): void {
    this.#areRulesFresh = areRulesFresh
  }

  /** Sets the function that looks up unknown peers. */
  setLookUp(lookUp: GuestFinder['lookUp']): void {
    this.#lookUp = lookUp
  }

  onChange(changed: (id: string) => void): void {
    this.#view.onChange(changed)
  }

  find(network: string, address: string): FoundInstance {
    return this.firewallWait === undefined ? this.#view.find(network, address) : UNKNOWN
  }

  lookUp(network: string, address: string): ReturnType<GuestFinder['lookUp']> {
    return this.firewallWait === undefined ? this.#lookUp(network, address) : undefined
  }
}
