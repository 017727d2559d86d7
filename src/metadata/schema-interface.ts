/** The schema of a network interface in a record. */
import Type from 'typebox'
import { DEFAULT_NETWORK, NAME } from './identifiers.ts'
import { fqdn, id, text } from './schema-texts.ts'

/** How many cloud IPs an interface of a record may have. */
export const MAX_CLOUD_IPS = 64

const publicIpv4 = text('an IPv4 address', { format: 'imds-ipv4', description: 'The public IPv4 address.' })
const publicIpv6 = text('an IPv6 address in its shortest, lower-case form', {
  format: 'imds-ipv6',
  description: 'The public IPv6 address: `public-ipv6` in the tree.',
})
const ipv4Interface = text(
  'an IPv4 address, optionally with a prefix length: 10.0.0.2/30; not unspecified, link-local, multicast or broadcast',
  { format: 'imds-ipv4-interface' },
)
const ipv6Interface = text(
  'an IPv6 address in its shortest, lower-case form, optionally with a prefix length: fd00::2/64; ' +
    'not unspecified, link-local or multicast',
  { format: 'imds-ipv6-interface' },
)
const ipv6Prefix = text(
  'an IPv6 network of global or unique local addresses in its shortest, lower-case form, ' +
    'with a length from 48 to 124 that is a multiple of 4: 2a02:1348:178:1::/64',
  { format: 'imds-ipv6-prefix' },
)

const CloudIp = Type.Object(
  {
    id: id('The id of the cloud IP.'),
    publicIpv4,
    publicIpv6: Type.Optional(publicIpv6),
    fqdn: fqdn('The public host name: `public-hostname` in the tree.'),
  },
  {
    description:
      'A cloud IP that is mapped to the interface. The cloud translates its addresses, ' +
      'so the interface never has them.',
  },
)

export const InterfaceSchema = Type.Object(
  {
    id: id('The id of the interface.'),
    macAddress: text('a MAC address in lower case with colons: 02:24:19:00:00:01', {
      pattern: '^[0-9a-f]{2}(:[0-9a-f]{2}){5}$',
      description: 'The MAC address.',
    }),
    network: text('the name of a network', {
      pattern: NAME,
      default: DEFAULT_NETWORK,
      description: 'The network: guests reach it by a listener of this name.',
    }),
    ipv4Addresses: Type.Array(ipv4Interface, {
      default: [],
      maxItems: 64,
      description: 'The private IPv4 addresses, the primary one first.',
    }),
    ipv6Addresses: Type.Array(ipv6Interface, {
      default: [],
      maxItems: 64,
      description: 'The IPv6 addresses, the primary one first.',
    }),
    ipv6Prefixes: Type.Array(ipv6Prefix, {
      default: [],
      maxItems: 64,
      description: 'The instance owns every address in it, since a guest with SLAAC chooses and changes its addresses.',
    }),
    dhcpv6: Type.Boolean({
      default: false,
      description:
        'Whether DHCPv6 serves ipv6Addresses. The tree shows them only then, ' +
        'because cloud-init turns DHCPv6 on when it sees any.',
    }),
    ipv4Gateway: Type.Optional(
      text('an IPv4 address', { format: 'imds-ipv4', description: 'The default gateway for IPv4.' }),
    ),
    ipv6Gateway: Type.Optional(
      text('an IPv6 address in its shortest, lower-case form', {
        format: 'imds-ipv6',
        description: 'The default gateway for IPv6, which may be link-local.',
      }),
    ),
    nameservers: Type.Array(
      text('an IPv4 address, or an IPv6 address in its shortest, lower-case form', { format: 'imds-ip' }),
      { default: [], maxItems: 8, description: 'The DNS resolvers of the guest. EC2 has no path for them.' },
    ),
    mtu: Type.Optional(
      Type.Integer({
        minimum: 1280, // Linux switches IPv6 off below (RFC 8200)
        maximum: 65535,
        description: 'The MTU. EC2 has no path for it.',
      }),
    ),
    cloudIps: Type.Array(CloudIp, { default: [], maxItems: MAX_CLOUD_IPS }),
  },
  { description: 'A network interface. The first one is device 0.' },
)
