/**
 * The path of packets from the hypervisor to a guest: its link, the route to each address, and the MAC address that the
 * kernel knows for it, compared with its record. What a guest controls is no failure, nor is a machine that is stopped.
 */
import type { FirewallDocument, FirewallGuest, FirewallInterface } from '../../imdsd/firewall/document.ts'
import { linksOf, type LinkName } from '../../imdsd/firewall/link.ts'
import { isOneAddress } from '../../metadata/address.ts'
import { parseJson } from '../../runtime/json.ts'
import { failure, ok, warning, type Finding, type State } from '../../runtime/check.ts'
import type { DoctorState } from './hypervisor-state.ts'
import type { CommandResult } from '../../runtime/command.ts'

/** A step of a path. `address` undefined: the step is the same for every address of the interface. */
export interface Step {
  readonly name: 'link' | 'route' | 'MAC address'
  readonly address: string | undefined
  readonly finding: Finding
}

/** The path to an interface of the instance `id`, up to the first step that is wrong. `runs`: its machine is here. */
export interface Path {
  readonly id: string
  readonly runs: boolean
  readonly steps: readonly Step[]
}

export const NOT_LOOKED_AT = warning('not checked: ip cannot be run', 'install the Debian package iproute2')

/**
 * Finds the path to each interface of some guests of a document. Undefined: ip cannot be run. Without firewall and
 * IMDS_LINK nothing says what the links are called, and only routes and MAC addresses are looked at.
 */
export async function findPaths(
  look: Pick<DoctorState, 'run' | 'settings'>,
  { guests: all, link: rule, listeners }: Pick<FirewallDocument, 'guests' | 'link' | 'listeners'>,
  guests: readonly FirewallGuest[],
): Promise<readonly Path[] | undefined> {
  const kernel = await readKernel(look)
  if (kernel === undefined) return undefined
  const { config, variables } = look.settings
  const hasRule = config?.firewall.required === true || (variables['IMDS_LINK'] ?? '') !== ''
  const links = linksOf(
    rule,
    all.flatMap(({ interfaces }) => interfaces),
  )
  const placed = guests.flatMap(({ id, interfaces }) =>
    interfaces.map((nic) => ({ id, ...linkOf(nic, hasRule ? links(nic) : undefined, kernel.links) })),
  )
  const routes = await readRoutes(look, placed)
  const servesIpv6 = listeners.some(({ address }) => address.includes(':'))
  return placed.map(({ id, of, link, isStopped, addresses, devices, vrf }) => {
    const first: Step[] = link === undefined ? [] : [{ name: 'link', address: undefined, finding: link }]
    if (isStopped || (link !== undefined && link.severity !== 'ok')) return { id, runs: !isStopped, steps: first }
    const routed = addresses.map((address) => ({ address, route: routes.get(`${vrf ?? ''} ${address}`) }))
    const runs = devices !== undefined || routed.some(({ address, route }) => !isElsewhere(address, route))
    const stateOf = (address: string) =>
      !runs ? 'ok' : !address.includes(':') ? 'failure' : servesIpv6 ? 'warning' : 'ok'
    const others = routed.flatMap(({ address, route }) =>
      addressSteps({ of, address, route, devices, neighbours: kernel.neighbours, ifWrong: stateOf(address) }),
    )
    return { id, runs, steps: [...first, ...others] }
  })
}

/** A link of the kernel. `master`: the bridge or VRF that it belongs to. */
interface KernelLink {
  readonly ifname: string
  readonly flags: readonly string[]
  readonly master?: string
  readonly linkinfo?: { readonly info_kind?: string }
}
/** An entry of the kernel's table of neighbours. */
interface Neighbour {
  readonly dst: string
  readonly dev: string
  readonly lladdr?: string
}
/** What `ip route get` says. */
interface Route {
  readonly dst: string
  readonly dev?: string
  readonly gateway?: string
  readonly type?: string
}
type KernelLinks = ReadonlyMap<string, KernelLink>

/** Asks the kernel. Undefined: ip cannot be run. */
async function readKernel(look: Pick<DoctorState, 'run'>) {
  const [links, neighbours] = await Promise.all([
    look.run(['ip', '-json', '-details', 'link', 'show']),
    look.run(['ip', '-json', 'neighbour', 'show']),
  ])
  if (links?.status !== 0) return undefined
  return {
    links: new Map((parseList(links.stdout) as KernelLink[]).map((link) => [link.ifname, link])),
    neighbours: parseList(neighbours?.stdout ?? '') as Neighbour[],
  }
}

/**
 * An interface with its link. `devices`: the link and the bridges above it; undefined, like `link`: nothing says which it
 * is.
 */
interface InterfaceLink {
  readonly of: FirewallInterface
  readonly link: Finding | undefined
  readonly devices: readonly string[] | undefined
  readonly vrf: string | undefined
  readonly addresses: readonly string[]
  /** The link is not there, or nothing is at its other end. */
  readonly isStopped: boolean
}

function linkOf(nic: FirewallInterface, name: LinkName | undefined, links: KernelLinks): InterfaceLink {
  // The document comes from a process that guests can reach, and root passes the addresses on to ip.
  const addresses = [...nic.ipv4Addresses, ...nic.ipv6Addresses].filter(isOneAddress)
  const placed = { of: nic, addresses, vrf: undefined, devices: undefined, isStopped: false }
  if (name === undefined) return { ...placed, link: undefined }
  if (!name.ok) return { ...placed, link: failure(name.faults.join(), 'correct IMDS_LINK') }
  const link = links.get(name.value)
  if (link === undefined)
    return { ...placed, isStopped: true, link: ok(`there is no link ${name.value}: the machine does not run here`) }
  const above = mastersOf(link, links)
  const isVrf = (device: string) => links.get(device)?.linkinfo?.info_kind === 'vrf'
  const devices = [link.ifname, ...above.filter((device) => !isVrf(device))]
  const down = devices.find((device) => links.get(device)?.flags.includes('UP') === false)
  const isStopped = down === undefined && !link.flags.includes('LOWER_UP')
  const finding =
    down !== undefined
      ? failure(`link ${down} is down`, `ip link set ${down} up`)
      : ok(isStopped ? `${link.ifname} has no carrier: the machine does not run` : `${devices.join(' in ')} is up`)
  return { ...placed, devices, vrf: above.find(isVrf), link: finding, isStopped }
}

/** The bridge or VRF of a link, and those above it. */
function mastersOf({ master }: KernelLink, links: KernelLinks, most = 4): string[] {
  if (master === undefined || most === 0) return []
  const above = links.get(master)
  return [master, ...(above === undefined ? [] : mastersOf(above, links, most - 1))]
}

/** The routes to all addresses, by VRF and address, from one process. */
async function readRoutes(
  look: Pick<DoctorState, 'run'>,
  placed: readonly InterfaceLink[],
): Promise<ReadonlyMap<string, Route>> {
  const routes = new Map<string, Route>()
  for (const [vrf, members] of Map.groupBy(placed, (link) => link.vrf)) {
    const questions = members
      .flatMap(({ addresses }) => addresses)
      .map((address) => `route get ${address}${vrf === undefined ? '' : ` vrf ${vrf}`}\n`)
    if (questions.length === 0) continue
    // With -force it continues after an address without a route, and its status is then not 0.
    const ran: CommandResult | undefined = await look.run(['ip', '-json', '-force', '-batch', '-'], questions.join(''))
    for (const line of (ran?.stdout ?? '').split('\n'))
      for (const route of parseList(line) as Route[]) routes.set(`${vrf ?? ''} ${route.dst}`, route)
  }
  return routes
}

/** The route to an address, and if it is right, the MAC address there. `ifWrong`: what a wrong route is. */
function addressSteps({
  of,
  address,
  route,
  devices,
  neighbours,
  ifWrong,
}: {
  readonly of: FirewallInterface
  readonly address: string
  readonly route: Route | undefined
  readonly devices: readonly string[] | undefined
  readonly neighbours: readonly Neighbour[]
  readonly ifWrong: State
}): Step[] {
  const wrong = routeProblem(address, route, devices)
  if (wrong !== undefined) {
    const severity = route?.type === 'local' ? 'failure' : ifWrong
    const remedy = `correct the route: ip route get ${address} shows it`
    const finding =
      severity === 'ok' ? ok(`${wrong}: requests from there get no response`) : { severity, text: wrong, remedy }
    return [{ name: 'route', address, finding }]
  }
  const device = route?.dev ?? ''
  const mac = neighbours.find(({ dst, dev }) => dst === address && dev === device)?.lladdr?.toLowerCase()
  const finding =
    mac === undefined
      ? ok(`that of ${address} is not known: no packet was sent there lately`)
      : mac === of.macAddress.toLowerCase()
        ? ok(`${address} has ${mac}, as in its record`)
        : warning(
            `${address} has the MAC address ${mac}, and its record has ${of.macAddress}`,
            'another guest may use the address (ip neigh): end that, or publish the right MAC address',
          )
  return [
    { name: 'route', address, finding: ok(`packets to ${address} leave by ${device}`) },
    { name: 'MAC address', address, finding },
  ]
}

/** True if packets to an address do not leave by a link of this hypervisor, as when its machine is stopped. */
function isElsewhere(address: string, route: Route | undefined): boolean {
  return route?.type !== 'local' && routeProblem(address, route, undefined) !== undefined
}

function routeProblem(
  address: string,
  route: Route | undefined,
  devices: readonly string[] | undefined,
): string | undefined {
  if (route?.dev === undefined) return `there is no route to ${address}`
  const { dev, gateway, type } = route
  if (type === 'local') return `${address} is an address of this hypervisor`
  const where = `packets to ${address} leave by ${dev}${gateway === undefined ? '' : ` to the gateway ${gateway}`}`
  if (devices !== undefined && !devices.includes(dev)) return `${where}, not by ${devices.join(' or ')}`
  return gateway === undefined ? undefined : where
}

/** A list, empty if the text is none. */
function parseList(text: string): unknown[] {
  const value = parseJson(text)
  return Array.isArray(value) ? value : []
}
