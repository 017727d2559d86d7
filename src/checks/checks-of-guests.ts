/** Checks of what is between the daemon and its guests: the firewall, and for each instance link, route and MAC address. */
import type { FirewallGuest, FirewallInterface } from '../firewall/document.ts'
import { Links, type LinkName } from '../firewall/link.ts'
import { isOneAddress, namesNobody } from '../metadata/address.ts'
import { formatInstances } from './amounts.ts'
import type { Check, Finding } from './check.ts'
import { failure, ok, warning } from './check.ts'
import type { Look, Ran } from './look.ts'

export const firewall: Check = {
  name: 'firewall',
  what: 'the rules in the kernel match what imdsd serves',
  remedy: 'see systemctl status imds-firewall and journalctl -u imds-firewall -n 50',
  find: async ({ readiness }) => {
    const read = await readiness()
    if (!read.ok) return []
    const { required, applied, ageSeconds, refused } = read.value.firewall
    if (!required) return [ok('IMDS_FIREWALL is off')]
    if (!applied) return [failure('its rules are not applied: no guest of a new instance can be started')]
    return [
      refused > 0
        ? warning(`nft refuses ${String(refused)} interfaces: their guests are kept out`)
        : ok(`its rules were confirmed ${String(Math.round(ageSeconds))} s ago`),
    ]
  },
}

export const guests: Check = {
  name: 'guests',
  what: 'the link of each interface is up, and packets to its addresses go there, to the MAC address of its record',
  remedy: 'compare ip link, ip route get ADDRESS and ip neigh with the record (imdsctl get)',
  find: async (look) => {
    const document = await look.firewall()
    if (!document.ok || document.value.guests.length === 0) return []
    const { guests: all, link: rule } = document.value
    const interfaces = all.flatMap((guest) => guest.interfaces)
    const kernel = await readKernel(look)
    if (kernel === undefined) return [warning('not checked: ip cannot be run', 'install the Debian package iproute2')]
    // Without firewall and IMDS_LINK nobody has said what the links are called.
    const hasRule =
      look.settings.config?.firewall.required === true || (look.settings.variables['IMDS_LINK'] ?? '') !== ''
    const links = new Links(rule, interfaces)
    const placed = interfaces.map((one) => placeOf(one, hasRule ? links.of(one) : undefined, kernel.links))
    const routes = await readRoutes(look, placed)
    const faulty = all.flatMap((guest) => guestFindings(guest, placed, routes, kernel.neighbours))
    const wrong = new Set(faulty.map(({ id }) => id)).size
    const fine = `${String(all.length - wrong)} of ${formatInstances(all.length)}: link, route and MAC address are right`
    return [...faulty.map(({ finding }) => finding), ...(wrong < all.length ? [ok(fine)] : [])]
  },
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

async function readKernel(
  look: Look,
): Promise<{ readonly links: KernelLinks; readonly neighbours: readonly Neighbour[] } | undefined> {
  const [links, neighbours] = await Promise.all([
    look.run(['ip', '-json', '-details', 'link', 'show']),
    look.run(['ip', '-json', 'neighbour', 'show']),
  ])
  if (links?.status !== 0) return undefined
  return {
    links: new Map((parseJson(links.stdout) as KernelLink[]).map((link) => [link.ifname, link])),
    neighbours: parseJson(neighbours?.stdout ?? '') as Neighbour[],
  }
}

/** An interface with its link. `devices`: the link and the bridges above it; undefined: nothing says which it is. */
interface Placed {
  readonly of: FirewallInterface
  readonly problem: Finding | undefined
  readonly devices: readonly string[] | undefined
  readonly vrf: string | undefined
  readonly addresses: readonly string[]
}

function placeOf(one: FirewallInterface, name: LinkName | undefined, links: KernelLinks): Placed {
  // The document comes from a process that guests can reach, and root passes the addresses on to ip.
  const addresses = [...one.ipv4Addresses, ...one.ipv6Addresses].filter(
    (address) => isOneAddress(address) && !namesNobody(address),
  )
  const placed = { of: one, addresses, vrf: undefined, devices: undefined }
  if (name === undefined) return { ...placed, problem: undefined }
  if (!name.ok) return { ...placed, problem: failure(name.faults.join(), 'correct IMDS_LINK') }
  const link = links.get(name.value)
  if (link === undefined)
    return { ...placed, problem: warning(`there is no link ${name.value}`, 'start the guest, or correct IMDS_LINK') }
  const above = mastersOf(link, links)
  const isVrf = (device: string) => links.get(device)?.linkinfo?.info_kind === 'vrf'
  const devices = [link.ifname, ...above.filter((device) => !isVrf(device))]
  const down = devices.find((device) => links.get(device)?.flags.includes('UP') === false)
  const problem =
    down !== undefined
      ? failure(`link ${down} is down`, `ip link set ${down} up`)
      : link.flags.includes('LOWER_UP')
        ? undefined
        : warning(`link ${link.ifname} has no carrier`, 'start the guest')
  return { ...placed, devices, vrf: above.find(isVrf), problem }
}

/** The bridge or VRF of a link, and those above it. */
function mastersOf({ master }: KernelLink, links: KernelLinks, most = 4): string[] {
  if (master === undefined || most === 0) return []
  const above = links.get(master)
  return [master, ...(above === undefined ? [] : mastersOf(above, links, most - 1))]
}

/** The routes to all addresses, by VRF and address, from one process. */
async function readRoutes(look: Look, placed: readonly Placed[]): Promise<ReadonlyMap<string, Route>> {
  const routes = new Map<string, Route>()
  for (const [vrf, members] of Map.groupBy(placed, (one) => one.vrf)) {
    const questions = members
      .flatMap(({ addresses }) => addresses)
      .map((address) => `route get ${address}${vrf === undefined ? '' : ` vrf ${vrf}`}\n`)
    if (questions.length === 0) continue
    // With -force it continues after an address without a route, and its status is then not 0.
    const ran: Ran | undefined = await look.run(['ip', '-json', '-force', '-batch', '-'], questions.join(''))
    for (const line of (ran?.stdout ?? '').split('\n'))
      for (const route of parseJson(line) as Route[]) routes.set(`${vrf ?? ''} ${route.dst}`, route)
  }
  return routes
}

/** What is wrong with the path of an instance: a line for each address, or for the link. */
function guestFindings(
  guest: FirewallGuest,
  placed: readonly Placed[],
  routes: ReadonlyMap<string, Route>,
  neighbours: readonly Neighbour[],
): { readonly id: string; readonly finding: Finding }[] {
  return placed
    .filter(({ of }) => guest.interfaces.includes(of))
    .flatMap(({ of, problem, addresses, devices, vrf }): Finding[] => {
      if (problem !== undefined) return [problem]
      return addresses.flatMap((address) => {
        const route = routes.get(`${vrf ?? ''} ${address}`)
        const wrong = routeProblem(address, route, devices)
        if (wrong !== undefined) return [failure(wrong)]
        const neighbour = neighbours.find(({ dst, dev }) => dst === address && dev === route?.dev)
        const mac = neighbour?.lladdr
        return mac === undefined || mac.toLowerCase() === of.macAddress.toLowerCase()
          ? []
          : [failure(`${address} has the MAC address ${mac}, and its record has ${of.macAddress}`)]
      })
    })
    .map((finding) => ({ id: guest.id, finding: { ...finding, text: `${guest.id}: ${finding.text}` } }))
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
function parseJson(text: string): unknown[] {
  try {
    const value: unknown = JSON.parse(text)
    return Array.isArray(value) ? value : []
  } catch {
    return []
  }
}
