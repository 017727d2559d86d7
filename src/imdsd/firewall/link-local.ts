/**
 * The rules for OpenStack's link-local address (contract E1). No socket can listen there on all links, so the rules
 * replace the address by that of a link-local listener, and back in the responses. A link and its MAC address decide on
 * both, and the kernel keeps nothing of a connection for it (`dnat`, `redirect` and `tproxy` keep state that a guest
 * could fill). The listener has its own address, so that the rules recognise its responses.
 *
 * Nothing else reaches such a listener. What is kept out is dropped and not reset: a reset for a link-local address
 * would leave by the first link that has such addresses. Without `notrack`, a hypervisor whose own rules track
 * connections would take those of two guests with one link-local address for one.
 */

/** The address at which OpenStack's guests ask. The hypervisor has it on each of their links. */
export const LINK_LOCAL_ADDRESS = 'fe80::a9fe:a9fe'
/** The port of that address, and of the link-local listeners: the rules replace the address only. */
export const LINK_LOCAL_PORT = 80

/** The parts of the base rules: maps, rules of the two hooks, and chains. */
export interface LinkLocalRules {
  readonly maps: string
  readonly prerouting: readonly string[]
  readonly output: readonly string[]
  readonly chains: string
}

/** Formats the rules. `listeners`: their addresses; `tooMany`: matches a new connection beyond the rate limit. */
export function formatLinkLocalRules(listeners: readonly string[], tooMany: string): LinkLocalRules {
  const all = listeners.join(', ')
  const port = String(LINK_LOCAL_PORT)
  return {
    maps: `  # Guests by link and MAC: the link-local listener of their network, and the hop limit of its answers.
  map listeners_link { type ifname . ether_addr : ipv6_addr; }
  map answers_link { type ifname : verdict; }
`,
    prerouting: [
      `ip6 daddr { ${LINK_LOCAL_ADDRESS}, ${all} } exthdr frag exists counter name fragments drop`,
      `ip6 daddr ${LINK_LOCAL_ADDRESS} tcp dport ${port} goto asked_link`,
      `ip6 daddr { ${all} } tcp dport ${port} counter name unknown_peers drop`,
    ],
    output: [`ip6 saddr { ${all} } tcp sport ${port} goto answer_link`],
    chains: `
  chain asked_link {
    ip6 saddr fe80::/64 ip6 daddr set iifname . ether saddr map @listeners_link goto opening_link
    counter name unknown_peers drop
  }
  chain opening_link {
    tcp flags & (fin | syn | rst | ack) == syn ${tooMany} counter name too_many drop
    notrack
    counter name admitted
  }
  chain answer_link {
    notrack
    ip6 saddr set ${LINK_LOCAL_ADDRESS}
    oifname vmap @answers_link
    counter name strays drop
  }
`,
  }
}
