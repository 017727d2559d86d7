/**
 * Finds the guest of an address: in the view, or in the store if the view has none. While `firewallWait` says why no
 * guest is answered, there is none.
 */
import type { Config } from './config.ts'
import type { GuestFinder } from './guest/identify.ts'
import { describeFirewallWait } from './listeners.ts'
import { UNKNOWN } from '../metadata/address.ts'
import type { FoundInstance, View } from './view/view.ts'

export class ViewGuestFinder implements GuestFinder {
  readonly #view: View
  #lookUp: GuestFinder['lookUp'] = () => undefined
  /** Why no guest is answered now, or undefined. */
  firewallWait: string | undefined

  constructor(config: Config, view: View) {
    this.#view = view
    this.firewallWait = config.needsFirewall ? describeFirewallWait(config.listen) : undefined
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
