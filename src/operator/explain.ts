/**
 * What would this address be answered, and why?
 *
 * What an operator asks when a guest says that it gets nothing. Reads what the guest side reads, changes nothing, and tells nothing that is
 * a guest's secret.
 */
import type { Diagnosis } from './diagnosis.ts'
import type { Firewall } from '../firewall/firewall.ts'
import { statusOf, type Refusal } from '../guest/respond.ts'
import { refusalOf } from '../guest/identify.ts'
import { canonicalAddress, overlap } from '../metadata/address.ts'
import type { Instance } from '../metadata/instance.ts'
import type { View } from '../view/view.ts'

/** What it is explained from. `networks`: those that guests are answered on here; `unreachable`: why a guest cannot reach their listeners, or null. */
export interface Explained {
  readonly view: View
  readonly firewall: Firewall
  readonly networks: readonly string[]
  readonly diagnosis: Diagnosis
  readonly unreachable: (instance: Instance) => string | null
}

/** `answer`: "metadata", or the reason of the refusal that metrics and logs name, with its status. The rest where the address is an instance's. */
export interface Explanation {
  readonly network: string
  readonly address: string
  readonly answer: 'metadata' | Refusal
  readonly status: number
  readonly because: string
  readonly instance?: { readonly id: string, readonly revision: number, readonly hypervisors: readonly string[] }
  readonly sessionTokens?: 'required' | 'optional'
  readonly userData?: string
  readonly hopLimit?: { readonly limit: number, readonly enforced: boolean }
  readonly firewall?: string
  /** Why no packet of the guest arrives. */
  readonly listener?: string
  /** What is wrong with its record in the store, or with the store. */
  readonly store?: string
}

/** Explains; undefined where that is no address. */
export async function explain(
  { view, firewall, networks, diagnosis, unreachable }: Explained, network: string, text: string,
): Promise<Explanation | undefined> {
  const address = canonicalAddress(text)
  if (address === undefined) return undefined
  const found = view.find(network, address)
  const refusal = refusalOf(found, address)
  const said = { network, address, answer: refusal ?? 'metadata', status: refusal === null ? 200 : statusOf(refusal) } as const
  if (!networks.includes(network)) return { ...said, because: `nobody is answered on network ${network} here: there are ${networks.join(', ')}` }
  if (found === 'unknown') {
    const elsewhere = networks.filter((other) => view.find(other, address) !== 'unknown')
    const hint = elsewhere.length > 0 ? `an instance has it on ${elsewhere.join(', ')}` : await diagnosis.address(network, address)
    return { ...said, because: `no instance that is known here has this address on network ${network}; ${hint}` }
  }
  if (found === 'contested') return { ...said, because: `more than one instance claims it: ${claimants(view, network, address)}` }

  const { instance, userData } = found
  const { httpTokens, httpPutResponseHopLimit: limit } = instance.options
  const heldBy = firewall.holds(instance)
  const listener = unreachable(instance)
  const store = await diagnosis.instance(instance.id)
  return {
    ...said,
    because: refusal === null ? `it is ${instance.id}'s` : OPTIONS[refusal] ?? refusal,
    instance: { id: instance.id, revision: instance.revision, hypervisors: instance.hypervisors },
    sessionTokens: httpTokens,
    userData: instance.sealedAt !== undefined ? `sealed since ${instance.sealedAt}` : userData === null ? 'none' : `${String(userData.length)} bytes`,
    hopLimit: { limit, enforced: firewall.limitsHops(instance) },
    ...heldBy !== null && { firewall: heldBy },
    ...listener !== null && { listener },
    ...store !== null && { store },
  }
}

const OPTIONS: Partial<Record<Refusal, string>> = {
  'endpoint-disabled': 'httpEndpoint of its record is disabled',
  'ipv6-disabled': 'httpProtocolIpv6 of its record is not enabled, and the address is an IPv6 one',
}

function claimants(view: View, network: string, address: string): string {
  return [...view.contested()].map(([key, ids]) => ({ on: key.split(' '), ids }))
    .filter(({ on: [where, range = ''] }) => where === network && overlap(range, address))
    .map(({ on: [, range = ''], ids }) => `${range} by ${ids.join(' and ')}`).join('; ')
}
