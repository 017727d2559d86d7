/**
 * Explains which response a guest at an address would get, and why, for an operator whose guest gets no metadata. It
 * reads the same state as the guest server, changes nothing, and shows no secret of a guest.
 */
import { packetsByName } from '../firewall/counters.ts'
import type { Firewall } from '../firewall/firewall.ts'
import { statusOf, type RefusalReason } from '../guest/refusals.ts'
import { identifies, refusalOf } from '../guest/identify.ts'
import { canonicalAddress, overlap, UNKNOWN } from '../../metadata/address.ts'
import { rangesOf, type Instance } from '../../metadata/instance.ts'
import type { ServedInstance } from '../view/served-instance.ts'
import type { View } from '../view/view.ts'
import type { AskedFor, Explanation, InstanceExplanation } from './documents.ts'
import { formatContested, type Diagnosis } from './diagnosis.ts'

/**
 * The parts of an explanation. `listeners`: those of guests; `firewallWait`: why no guest is answered now, or undefined;
 * `unreachable`: why a guest cannot reach its listeners, or undefined; `requests`: what its guest has asked for.
 */
interface ExplainParts {
  readonly view: View
  readonly firewall: Firewall
  readonly listeners: readonly { readonly network: string; readonly host: string }[]
  readonly firewallWait: () => string | undefined
  readonly diagnosis: Diagnosis
  readonly unreachable: (instance: Instance) => string | undefined
  readonly requests: (served: ServedInstance) => AskedFor[]
}

/** The most addresses of an instance that are explained: a record may have thousands, and guests wait meanwhile. */
const MAX_ADDRESSES = 16

/** Explains what the guest of an instance would get at each of its addresses. */
export async function explainInstance(parts: ExplainParts, id: string): Promise<InstanceExplanation> {
  const served = parts.view.get(id)
  if (served === undefined) {
    const reason = await parts.diagnosis.instance(id)
    return { id, ...(reason !== undefined && { reason }), addresses: [], more: 0 }
  }
  const all = rangesOf(served.instance).filter(({ range }) => canonicalAddress(range) !== undefined)
  const explained = await Promise.all(
    all.slice(0, MAX_ADDRESSES).map(({ network, range }) => explain(parts, network, range)),
  )
  return {
    id,
    revision: served.instance.revision,
    addresses: explained.filter((explanation) => explanation !== undefined),
    more: Math.max(0, all.length - MAX_ADDRESSES),
  }
}

/** Explains what a guest at an address would get. Undefined if `text` is not an address. */
export async function explain(
  { view, firewall, listeners, firewallWait, diagnosis, unreachable, requests }: ExplainParts,
  network: string,
  text: string,
): Promise<Explanation | undefined> {
  const address = canonicalAddress(text)
  if (address === undefined) return undefined
  const networks = [...new Set(listeners.map((listener) => listener.network))]
  const reached = listeners.filter((listener) => listener.network === network && isReachedFrom(address, listener.host))
  if (reached.length === 0) {
    const because = networks.includes(network)
      ? `no listener of network ${network} has an ${address.includes(':') ? 'IPv6' : 'IPv4'} address`
      : `this daemon does not serve network ${network}; it serves ${networks.join(', ')}`
    return { network, address, answer: 'no-listener', because }
  }
  const wait = firewallWait()
  if (wait !== undefined)
    return { network, address, answer: 'unknown-peer', status: statusOf('unknown-peer'), because: wait }
  const known = view.find(network, address)
  const found = reached.some(({ host }) => identifies(host, address)) ? known : UNKNOWN
  const refusal = refusalOf(found, address)
  const answer = {
    network,
    address,
    answer: refusal ?? 'metadata',
    status: refusal === undefined ? 200 : statusOf(refusal),
  } as const
  if (found.kind === 'unknown' && known.kind !== 'unknown')
    return { ...answer, because: 'a loopback address is no guest, except at a listener that has one itself' }
  if (found.kind === 'unknown') {
    const elsewhere = networks.filter((other) => view.find(other, address).kind !== 'unknown')
    const hint =
      elsewhere.length > 0 ? `an instance has it on ${elsewhere.join(', ')}` : await diagnosis.address(network, address)
    const because = `no instance that is known here has this address on network ${network}; ${hint}`
    if (!firewall.isFresh()) return { ...answer, because }
    return { network, address, answer: answer.answer, because: `${because}; the firewall resets its connections` }
  }
  if (found.kind === 'unconfirmed') {
    const waiting = firewall.unconfirmed((gain) => gain.range.network === network && overlap(gain.range.range, address))
    return { ...answer, because: `the firewall must confirm it first: ${[...waiting].join('; ')}` }
  }
  if (found.kind === 'contested') {
    const contested = formatContested(view, (on, range) => on === network && overlap(range, address))
    return { ...answer, because: contested.join('; ') }
  }

  const { instance, userData } = found.owner
  const { httpTokens, httpPutResponseHopLimit: limit } = instance.options
  const firewallProblem = firewall.problemOf(instance)
  const listener = unreachable(instance)
  const store = await diagnosis.instance(instance.id)
  const packets = firewall.packets()
  return {
    ...answer,
    because: refusal === undefined ? `it is ${instance.id}'s` : (OPTIONS[refusal] ?? refusal),
    instance: { id: instance.id, revision: instance.revision, hypervisors: [...instance.hypervisors] },
    sessionTokens: httpTokens,
    userData: describeUserData(instance.sealedAt, userData),
    hopLimit: { limit, enforced: firewall.limitsHops(instance) },
    ...(firewallProblem !== undefined && { firewall: firewallProblem }),
    ...(listener !== undefined && { listener }),
    ...(store !== undefined && { store }),
    ...(packets !== undefined && { packets: packetsByName(packets) }),
    requests: requests(found.owner),
  }
}

/** Whether a guest with this address can connect to a listener. A guest with an IPv6 address connects over IPv6. */
function isReachedFrom(address: string, host: string): boolean {
  return host === '::' || address.includes(':') === host.includes(':')
}

const OPTIONS: Partial<Record<RefusalReason, string>> = {
  'endpoint-disabled': 'httpEndpoint of its record is disabled',
  'ipv6-disabled': 'httpProtocolIpv6 of its record is not enabled, and the address is an IPv6 one',
}

function describeUserData(sealedAt: string | undefined, userData: Uint8Array | undefined): string {
  if (sealedAt !== undefined) return `sealed since ${sealedAt}`
  return userData === undefined ? 'none' : `${userData.length} bytes`
}
