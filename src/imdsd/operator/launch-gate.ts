/**
 * The launch gate decides whether the guest of an instance may be started on this hypervisor. It may if this daemon
 * serves the instance on one of its networks, the instance has all of its addresses, the listener's address exists, and
 * the firewall, if it is required, has confirmed all of that freshly.
 */
import type { Firewall } from '../firewall/firewall.ts'
import type { Instance } from '../../metadata/instance.ts'
import type { View } from '../view/view.ts'

/** What the gate depends on. `unreachable`: why a guest cannot reach its listeners, or undefined. */
export interface LaunchGateParts {
  readonly view: View
  readonly firewall: Pick<Firewall, 'linkFault' | 'problemOf'>
  /** Networks that this daemon serves. */
  readonly networks: readonly string[]
  readonly unreachable: (instance: Instance) => string | undefined
}

/**
 * What is served of an instance, as InstanceState. `order`: its place in the order of the region: one revision may have
 * two contents after the store went back. `reason`: why the guest must not be started yet; absent: it may be.
 */
export interface GateState {
  readonly revision: number
  readonly order: number
  readonly reason?: string
  readonly final?: true
}

/** Builds the gate: the state of an instance by its id; undefined: it is not served here. */
export function buildLaunchGate({
  view,
  firewall,
  networks,
  unreachable,
}: LaunchGateParts): (id: string) => GateState | undefined {
  return (id) => {
    const { instance, order = 0, lost = [] } = view.get(id) ?? {}
    const isServed = instance?.interfaces.some(({ network }) => networks.includes(network)) === true
    const isContested = [...view.contested().values()].some((ids) => ids.includes(id))
    if (instance === undefined || !isServed || isContested || lost.length > 0) return undefined
    const fault = firewall.linkFault(instance)
    const reason = fault ?? unreachable(instance) ?? firewall.problemOf(instance)
    return {
      revision: instance.revision,
      order,
      ...(reason !== undefined && { reason }),
      ...(fault !== undefined && { final: true }),
    }
  }
}

/**
 * Why a guest cannot reach the listeners of its networks, or undefined. `missing` returns the addresses of listeners
 * that no interface of this hypervisor has now, and `format` makes a sentence of one.
 */
export function unreachableBy(
  listeners: readonly { readonly network: string; readonly host: string }[],
  missing: () => readonly string[],
  format: (address: string) => string,
): (instance: Instance) => string | undefined {
  return ({ interfaces }) => {
    const gone = missing()
    const listener = listeners.find(
      ({ network, host }) => gone.includes(host) && interfaces.some((nic) => nic.network === network),
    )
    return listener && format(listener.host)
  }
}
