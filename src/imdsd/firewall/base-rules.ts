/** The base rules: sets and chains, which depend on instances by their hop limits only. rules.ts says what for. */

/**
 * What the base rules depend on. `operatorPort` undefined: none. `linkHead`: the common beginning of guests' link
 * names, if there is one. `hops`: the hop limits in use; `limitedDscp`: the DSCP of the packets that get them.
 */
export interface BaseRulesParts {
  readonly listeners: readonly { readonly address: string; readonly port: number }[]
  readonly operatorPort: number | undefined
  readonly linkHead: string | undefined
  readonly hops: ReadonlySet<number>
  readonly limitedDscp: number
}

export const TABLE = 'inet imds'

/** The rate limit of new connections of an interface: ten times contract F1. */
const OPENED = 'limit rate over 1000/second burst 6000 packets'
/** The rate limit of resets to unknown peers together. Beyond it packets are dropped. */
const REFUSED = 'limit rate 1000/second burst 1000 packets'

/** Formats the content of the table without its comment, counters and elements. */
export function formatBaseRules({ listeners, operatorPort, linkHead, hops, limitedDscp }: BaseRulesParts): string {
  const four = listeners.filter(({ address }) => !address.includes(':'))
  const six = listeners.filter(({ address }) => address.includes(':'))
  const asked = [
    ...matchAddresses(four, 'ip daddr', 'ip frag-off & 0x3fff != 0 counter name fragments drop'),
    ...matchAddresses(six, 'ip6 daddr', 'exthdr frag exists counter name fragments drop'),
    ...matchListeners(four, 'ip daddr . tcp dport', 'goto asked4'),
    ...matchListeners(six, 'ip6 daddr . tcp dport', 'goto asked6'),
  ]
  const tooMany = `update @opened { iifname . ether saddr ${OPENED} }`
  const answered = [
    ...matchListeners(four, 'ip saddr . tcp sport', 'goto answer4'),
    ...matchListeners(six, 'ip6 saddr . tcp sport', 'goto answer6'),
  ]
  const accepted = [
    ...matchListeners(four, 'ip daddr . tcp dport', 'meta mark set iifname . ether saddr map @marks'),
    ...matchListeners(six, 'ip6 daddr . tcp dport', 'meta mark set iifname . ether saddr map @marks'),
  ]
  const links = [...(linkHead === undefined ? [] : [`"${linkHead}*"`]), '@links']
  const operators =
    operatorPort === undefined
      ? []
      : links.map((link) => `iifname ${link} tcp dport ${operatorPort} counter name operators reject with tcp reset`)
  return `  # Guests: link, MAC and source address of an interface; address and port of a listener of its network.
  set guests4 { type ifname . ether_addr . ipv4_addr . ipv4_addr . inet_service; }
  set guests6 { type ifname . ether_addr . ipv6_addr . ipv6_addr . inet_service; }
  set prefixes6 { type ifname . ether_addr . ipv6_addr . ipv6_addr . inet_service; flags interval; }
  # Answers: link, mark, the listener's address and the destination of one; the chain has its hop limit. In a set of
  # intervals nft mixes up the bytes of marks, so link and mark are checked before.
  map answers4 { type ifname . mark . ipv4_addr . ipv4_addr : verdict; }
  map answers6 { type ifname . mark . ipv6_addr . ipv6_addr : verdict; }
  map ranges6 { type ifname . ipv6_addr . ipv6_addr : verdict; flags interval; }
  set links { type ifname; }
  # The mark of each instance on a link, which the connections that came from it have.
  map marks { type ifname . ether_addr : mark; }
  set marked { type ifname . mark; }
  # State that the kernel keeps: new connections of each interface.
  set opened { type ifname . ether_addr; size 65535; flags dynamic,timeout; timeout 1m; }

  chain prerouting {
    type filter hook prerouting priority raw; policy accept;
${formatRules(asked)}  }
  chain asked4 {
    iifname . ether saddr . ip saddr . ip daddr . tcp dport @guests4 goto opening
    goto unknown_peer
  }
  chain asked6 {
    iifname . ether saddr . ip6 saddr . ip6 daddr . tcp dport @guests6 goto opening
    iifname . ether saddr . ip6 saddr . ip6 daddr . tcp dport @prefixes6 goto opening
    goto unknown_peer
  }
  # The first packet of a connection is reset, so that a guest that is not known yet tries again soon.
  # Other packets may be forged, and are dropped.
  chain unknown_peer {
    counter name unknown_peers
    tcp flags & (fin | syn | rst | ack) == syn ${REFUSED} reject with tcp reset
    drop
  }
  chain opening {
    tcp flags & (fin | syn | rst | ack) == syn ${tooMany} counter name too_many reject with tcp reset
    counter name admitted
  }

  # Priority raw: before the host's own rules can change a DSCP, which marks the packets with a hop limit.
  chain output {
    type filter hook output priority raw; policy accept;
${formatRules(answered)}  }
  chain answer4 {
    oifname . meta mark . ip saddr . ip daddr vmap @answers4
    goto stray
  }
  chain answer6 {
    oifname . meta mark . ip6 saddr . ip6 daddr vmap @answers6
    oifname . meta mark != @marked goto stray
    oifname . ip6 saddr . ip6 daddr vmap @ranges6
    goto stray
  }
  # A reset contains nothing of an instance, and unknown peers get resets.
  chain stray {
    tcp flags & rst == rst accept
    counter name strays drop
  }

${[...hops]
  .sort((a, b) => a - b)
  .map((limit) => formatHopChain(limit, limitedDscp))
  .join('')}
  chain input {
    type filter hook input priority filter; policy accept;
${formatRules(operators)}  }
  # After the host's own rules, which may use marks in their own way: the socket takes over the mark that it finds here.
  chain accepted {
    type filter hook input priority 1000; policy accept;
${formatRules(accepted)}  }
`
}

/**
 * The chain of answers with a hop limit: packets with the DSCP get the limit and lose the DSCP, others pass unchanged.
 * The mark ends here, before the host's own rules can see it.
 */
function formatHopChain(limit: number, limitedDscp: number): string {
  const dscp = `0x${limitedDscp.toString(16).padStart(2, '0')}`
  return `  chain hop_${limit} {
    meta mark set 0
    ip dscp ${dscp} ip ttl set ${limit} ip dscp set cs0
    ip6 dscp ${dscp} ip6 hoplimit set ${limit} ip6 dscp set cs0
  }
`
}

function matchAddresses(listeners: BaseRulesParts['listeners'], key: string, what: string): string[] {
  const addresses = [...new Set(listeners.map(({ address }) => address))]
  return addresses.length === 0 ? [] : [`${key} { ${addresses.join(', ')} } ${what}`]
}

function matchListeners(listeners: BaseRulesParts['listeners'], key: string, what: string): string[] {
  const places = [...new Set(listeners.map(({ address, port }) => `${address} . ${port}`))]
  return places.length === 0 ? [] : [`${key} { ${places.join(', ')} } ${what}`]
}

function formatRules(rules: readonly string[]): string {
  return rules.map((rule) => `    ${rule}\n`).join('')
}
