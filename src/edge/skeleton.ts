/**
 * The part of the rules that stays while instances come and go: sets, chains and counters. rules.ts says what they are for.
 */

/** What the skeleton depends on. `operatorPort` 0: none. `linkHead`: what the names of all guests' links begin with, where that is known. */
export interface SkeletonParts {
  readonly listeners: readonly { readonly address: string, readonly port: number }[]
  readonly operatorPort: number
  readonly linkHead: string | undefined
}

/** The table that is ours. */
export const TABLE = 'inet imds'

/** New connections of an interface, a second and at once: ten times contract F1. */
const OPENED = 'limit rate over 1000/second burst 6000 packets'
/** New connections of an interface that do not begin with a GET: each is a request of F1 too. Bounds what `puts4` and `puts6` hold of one guest. */
const MARKED = 'limit rate over 100/second burst 2000 packets'
/** Resets that anybody else is given, all together; beyond it, silence. */
const REFUSED = 'limit rate 1000/second burst 1000 packets'
/** How long a connection that may hold a PUT is remembered after its last packet. TCP waits 120 s between two attempts at most. */
const MARK_TIMEOUT = '3m'
/** So many connections of all guests may hold a PUT at once. An element takes some 200 bytes. */
const MARKS = 1_048_576

/** A TCP header has 5 to 15 words of 32 bits; its data comes after them. */
const HEADER_WORDS = Array.from({ length: 11 }, (_, i) => i + 5)
const ASCII = (text: string) => `0x${Buffer.from(text, 'latin1').toString('hex')}`

/** Writes the table without the elements of its sets. */
export function skeletonOf({ listeners, operatorPort, linkHead }: SkeletonParts): string {
  const four = listeners.filter(({ address }) => !address.includes(':'))
  const six = listeners.filter(({ address }) => address.includes(':'))
  return `table ${TABLE} {
  # Who may ask: link, MAC and source address of an interface; address and port of a listener of its network.
  set guests4 { type ifname . ether_addr . ipv4_addr . ipv4_addr . inet_service; }
  set guests6 { type ifname . ether_addr . ipv6_addr . ipv6_addr . inet_service; }
  set prefixes6 { type ifname . ether_addr . ipv6_addr . ipv6_addr . inet_service; flags interval; }
  # By which link an answer may leave, and how far it may travel.
  map answers4 { type ifname . ipv4_addr : verdict; }
  map answers6 { type ifname . ipv6_addr : verdict; }
  map ranges6 { type ifname . ipv6_addr : verdict; flags interval; }
  set links { type ifname; }
  # What guests do: state that the kernel keeps.
  set opened { type ifname . ether_addr; size 65535; flags dynamic,timeout; timeout 1m; }
  set marked { type ifname . ether_addr; size 65535; flags dynamic,timeout; timeout 1m; }
  set puts4 { type ifname . ipv4_addr . inet_service; size ${String(MARKS)}; flags dynamic,timeout; timeout ${MARK_TIMEOUT}; }
  set puts6 { type ifname . ipv6_addr . inet_service; size ${String(MARKS)}; flags dynamic,timeout; timeout ${MARK_TIMEOUT}; }
  counter strangers { }
  counter too_many { }
  counter fragments { }
  counter strays { }
  counter operators { }

  chain prerouting {
    type filter hook prerouting priority raw; policy accept;
${[
  ...placed(four, 'ip daddr', 'ip frag-off & 0x3fff != 0 counter name fragments drop'),
  ...placed(six, 'ip6 daddr', 'exthdr frag exists counter name fragments drop'),
  ...served(four, 'ip daddr . tcp dport', 'goto asked4'),
  ...served(six, 'ip6 daddr . tcp dport', 'goto asked6'),
].map((rule) => `    ${rule}\n`).join('')}  }
  chain asked4 {
    iifname . ether saddr . ip saddr . ip daddr . tcp dport @guests4 goto guest4
    goto stranger
  }
  chain asked6 {
    iifname . ether saddr . ip6 saddr . ip6 daddr . tcp dport @guests6 goto guest6
    iifname . ether saddr . ip6 saddr . ip6 daddr . tcp dport @prefixes6 goto guest6
    goto stranger
  }
  # The first packet of a connection is reset, so that whoever is not known yet asks again soon; what else may be forged is dropped.
  chain stranger {
    counter name strangers
    tcp flags & (fin | syn | rst | ack) == syn ${REFUSED} reject with tcp reset
    drop
  }
${guestChain('4', 'ip')}${guestChain('6', 'ip6')}  chain opening {
    tcp flags & (fin | syn | rst | ack) == syn update @opened { iifname . ether saddr ${OPENED} } counter name too_many reject with tcp reset
  }
  chain marking {
    update @marked { iifname . ether saddr ${MARKED} } counter name too_many reject with tcp reset
  }
  # Returns when the segment has data that does not begin a GET or a HEAD.
  chain payload {
    tcp doff vmap { ${HEADER_WORDS.map((words) => `${String(words)} : goto payload_${String(words)}`).join(', ')} }
  }
${HEADER_WORDS.map(payloadChain).join('')}
  chain output {
    type filter hook output priority mangle; policy accept;
${[...served(four, 'ip saddr . tcp sport', 'goto answer4'), ...served(six, 'ip6 saddr . tcp sport', 'goto answer6')].map((rule) => `    ${rule}\n`).join('')}  }
  chain answer4 {
    oifname . ip daddr vmap @answers4
    goto stray
  }
  chain answer6 {
    oifname . ip6 daddr vmap @answers6
    oifname . ip6 daddr vmap @ranges6
    goto stray
  }
  # A reset says nothing of anybody; it is what a stranger is given.
  chain stray {
    tcp flags & rst == rst accept
    counter name strays drop
  }

  chain input {
    type filter hook input priority filter; policy accept;
${operatorPort === 0 ? '' : [...linkHead === undefined ? [] : [`"${linkHead}*"`], '@links'].map((links) => `    iifname ${links} tcp dport ${String(operatorPort)} counter name operators reject with tcp reset\n`).join('')}  }
}
`
}

/** Statements that make the chain for answers with a hop limit what it is, whether it is there or not. */
export function hopChain(limit: number): string[] {
  const name = `${TABLE} hop_${String(limit)}`
  const rule = (family: '4' | '6', header: 'ip' | 'ip6', set: string) => {
    const flow = `oifname . ${header} daddr . tcp dport`
    return `add rule ${name} ${flow} @puts${family} update @puts${family} { ${flow} } ${set} ${String(limit)}`
  }
  return [`add chain ${name}`, `flush chain ${name}`, rule('4', 'ip', 'ip ttl set'), rule('6', 'ip6', 'ip6 hoplimit set')]
}

/** That chain as nft lists it. */
export function hopListing(limit: number): string {
  const name = `hop_${String(limit)}`
  const rules = hopChain(limit).filter((line) => line.startsWith('add rule')).map((line) => `\t\t${line.slice(`add rule ${TABLE} ${name} `.length)}\n`)
  return `\tchain ${name} {\n${rules.join('')}\t}\n`
}

function guestChain(family: '4' | '6', header: 'ip' | 'ip6'): string {
  const flow = `iifname . ${header} saddr . tcp sport`
  return `  chain guest${family} {
    jump opening
    ${flow} @puts${family} update @puts${family} { ${flow} } accept
    jump payload
    jump marking
    add @puts${family} { ${flow} } accept
    counter name too_many reject with tcp reset
  }
`
}

/** \`@th\` counts bits from the start of the TCP header. Without data there is nothing to load there, and no rule matches. */
function payloadChain(words: number): string {
  const at = String(words * 32)
  return `  chain payload_${String(words)} {
    @th,${at},32 { ${ASCII('GET ')}, ${ASCII('HEAD')} } accept
    @th,${at},8 0 return
    @th,${at},8 != 0 return
    accept
  }
`
}

function placed(listeners: SkeletonParts['listeners'], key: string, what: string): string[] {
  const addresses = [...new Set(listeners.map(({ address }) => address))]
  return addresses.length === 0 ? [] : [`${key} { ${addresses.join(', ')} } ${what}`]
}

function served(listeners: SkeletonParts['listeners'], key: string, what: string): string[] {
  const places = [...new Set(listeners.map(({ address, port }) => `${address} . ${String(port)}`))]
  return places.length === 0 ? [] : [`${key} { ${places.join(', ')} } ${what}`]
}
