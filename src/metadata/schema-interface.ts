/** The schema of a network interface in a record. */
import Type from 'typebox'
import { DEFAULT_NETWORK, NAME } from './identifiers.ts'
import { fqdn, id, text } from './schema-texts.ts'

/** How many cloud IPs an interface of a record may have. */
export const MAX_CLOUD_IPS = 64

const publicIpv4 = text('an IPv4 address', { format: 'imds-ipv4', description: '`public-ipv4` in the tree.' })
const publicIpv6 = text('an IPv6 address in its shortest, lower-case form', {
  format: 'imds-ipv6',
  description: '`public-ipv6` in the tree.',
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
    id: id('Its id.'),
    publicIpv4,
    publicIpv6: Type.Optional(publicIpv6),
    fqdn: fqdn('`public-hostname` in the tree.'),
  },
  {
    description: 'A cloud IP: public addresses that the cloud translates to those of the interface.',
  },
)

export const InterfaceSchema = Type.Object(
  {
    id: id('Its id.'),
    macAddress: text('a MAC address in lower case with colons: 02:24:19:00:00:01', {
      pattern: '^[0-9a-f]{2}(:[0-9a-f]{2}){5}$',
      description: '`mac` in the tree.',
    }),
    network: text('the name of a network', {
      pattern: NAME,
      default: DEFAULT_NETWORK,
      description: 'Guests reach the listener of this name.',
    }),
    ipv4Addresses: Type.Array(ipv4Interface, {
      default: [],
      maxItems: 64,
      description: 'The private addresses, the primary first.',
    }),
    ipv6Addresses: Type.Array(ipv6Interface, {
      default: [],
      maxItems: 64,
      description: 'The addresses, the primary first.',
    }),
    ipv6Prefixes: Type.Array(ipv6Prefix, {
      default: [],
      maxItems: 64,
      description: 'The instance owns every address in it, for guests with SLAAC.',
    }),
    dhcpv6: Type.Boolean({
      default: false,
      description: 'Whether DHCPv6 serves ipv6Addresses. The tree shows them only then.',
    }),
    ipv4Gateway: Type.Optional(text('an IPv4 address', { format: 'imds-ipv4', description: 'The default gateway.' })),
    ipv6Gateway: Type.Optional(
      text('an IPv6 address in its shortest, lower-case form', {
        format: 'imds-ipv6',
        description: 'The default gateway; it may be link-local.',
      }),
    ),
    nameservers: Type.Array(
      text('an IPv4 address, or an IPv6 address in its shortest, lower-case form', { format: 'imds-ip' }),
      { default: [], maxItems: 8, description: 'DNS resolvers. EC2 has no path for them.' },
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
  { description: 'A network interface. The first is device 0.' },
)
