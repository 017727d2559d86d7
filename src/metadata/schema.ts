/**
 * The schema of a record. The type, the check (record.ts) and the published JSON Schema are derived from it.
 *
 * Every list, map and text has a bound, which limits what one instance can cost a hypervisor. publish.lua has the same
 * bounds.
 */
import Type from 'typebox'
import { LINE_CHARACTER, LINE_RULE, NAME, WELL_FORMED } from './identifiers.ts'
import { InterfaceSchema } from './schema-interface.ts'
import { fqdn, id, choice, text, time } from './schema-texts.ts'

/** The number of the schema that this version reads and writes. */
export const SCHEMA = 1
export const MAX_SERVER_GROUPS = 256
/** How many SSH keys a record may have, those of all users. */
export const MAX_PUBLIC_KEYS = 256
export const MAX_KEYS_OF_USER = 32
export const MAX_EVENTS = 32
/** The longest vendor data in characters: as much as EC2 allows for user-data. */
const MAX_VENDOR_DATA_CHARACTERS = 16384

const ServerGroup = Type.Object(
  {
    id: id('Its id.'),
    name: text(`a name on ${LINE_RULE}`, {
      pattern: `^${LINE_CHARACTER}{1,255}$`,
      description: '`security-groups` in the tree.',
    }),
  },
  { description: 'A server group, which guests see as a security group.' },
)

const sshKey = (description: string) =>
  text('one line of an authorized_keys file, without control characters: type, base64 and a comment', {
    pattern: `^(ssh-|ecdsa-sha2-|sk-)[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,3}( ${LINE_CHARACTER}*)?$`,
    maxLength: 16384,
    description,
  })

const PublicKey = Type.Object(
  {
    user: id('The id of the user.'),
    key: sshKey('The first public key.'),
    moreKeys: Type.Array(sshKey('The others.'), { default: [], maxItems: MAX_KEYS_OF_USER - 1 }),
  },
  { description: `The SSH keys of a user. All users together have at most ${MAX_PUBLIC_KEYS}.` },
)

export const OptionsSchema = Type.Object(
  {
    httpEndpoint: choice(['enabled', 'disabled'], 'enabled', 'Whether requests are served; else 403.'),
    httpTokens: choice(['optional', 'required'], 'optional', 'Whether requests need a session token.'),
    httpPutResponseHopLimit: Type.Integer({
      minimum: 1,
      maximum: 64,
      default: 1,
      description: 'How many hops a session token may travel.',
    }),
    httpProtocolIpv6: choice(['enabled', 'disabled'], 'disabled', 'Whether requests over IPv6 are served.'),
    instanceMetadataTags: choice(['enabled', 'disabled'], 'disabled', 'Whether the tree shows the tags.'),
    openstack: choice(['enabled', 'disabled'], 'disabled', 'Whether `/openstack/` is served.'),
    reports: choice(['enabled', 'disabled'], 'disabled', 'Whether the guest may report back.'),
  },
  { default: {}, description: "EC2's metadata options." },
)

const Tag = text('a text of at most 256 characters, without half of a surrogate pair', {
  pattern: WELL_FORMED,
  maxLength: 256,
})
export const TagsSchema = Type.Record(Type.String(), Tag, {
  default: {},
  maxProperties: 50,
  propertyNames: { maxLength: 128, pattern: WELL_FORMED },
  description: "Key to value, with EC2's limits.",
})

const BlockDeviceName = Type.String({ pattern: '^(ami|root|swap|ebs[0-9]{1,3}|ephemeral[0-9]{1,3})$' })
const BlockDevice = text('a device name, with or without /dev/', {
  pattern: '^(/dev/)?[A-Za-z0-9][A-Za-z0-9/_-]{0,62}$',
})

const UserData = Type.Object(
  {
    size: Type.Integer({ minimum: 0, description: 'The number of bytes.' }),
    sha256: text('a SHA-256 digest as 64 lower-case hexadecimal digits', {
      pattern: '^[0-9a-f]{64}$',
      description: 'The digest of the bytes.',
    }),
  },
  { description: 'The size and the digest of the user-data.' },
)

const MaintenanceEvent = Type.Object(
  {
    id: id('Its id.'),
    code: Type.Enum(
      ['instance-reboot', 'instance-retirement', 'instance-stop', 'system-maintenance', 'system-reboot'],
      {
        hint: 'one of instance-reboot, instance-retirement, instance-stop, system-maintenance, system-reboot',
        description: 'What happens.',
      },
    ),
    state: choice(['active', 'completed', 'canceled'], 'active', 'active: it is scheduled; else history.'),
    notBefore: time('The earliest start.'),
    notAfter: Type.Optional(time('The latest end.')),
    description: text(`a text on ${LINE_RULE}`, {
      pattern: `^${LINE_CHARACTER}{1,1024}$`,
      description: 'What the guest should know.',
    }),
  },
  { description: 'A maintenance event, as on EC2.' },
)

/** The JSON Schema (draft 2020-12) of a record. `hint` is our own keyword: the rule in words, for messages. */
export const InstanceSchema = Type.Object(
  {
    schema: Type.Literal(SCHEMA, { hint: `the number ${SCHEMA}`, description: 'The version of this schema.' }),
    revision: Type.Integer({
      minimum: 1,
      maximum: Number.MAX_SAFE_INTEGER,
      description: 'Increases with every change.',
    }),
    id: id('It never changes: cloud-init takes another id for a new instance.'),
    incarnation: Type.Optional(
      id('Which of several instances with this id. The store refuses a record with another incarnation.'),
    ),
    fqdn: fqdn('The host name.'),
    account: id('Its owner.'),
    serverType: Type.Object(
      { id: id('Its id.'), handle: text('a handle', { pattern: NAME, description: '`instance-type` in the tree.' }) },
      { description: 'The type of the server.' },
    ),
    image: id('`ami-id` in the tree.'),
    zone: Type.Object(
      {
        id: id('Its id.'),
        handle: text('a handle', { pattern: NAME, description: '`placement/availability-zone` in the tree.' }),
      },
      { description: 'The zone.' },
    ),
    architecture: Type.Optional(
      Type.Enum(['arm64', 'i386', 'ppc64le', 'riscv64', 's390x', 'x86_64'], {
        hint: 'one of arm64, i386, ppc64le, riscv64, s390x, x86_64',
        description: 'The processor.',
      }),
    ),
    launchTime: Type.Optional(time('`pendingTime` of the identity document.')),
    region: text('the name of a region', { pattern: NAME, description: 'The region of the store.' }),
    interfaces: Type.Array(InterfaceSchema, { minItems: 1, maxItems: 32 }),
    serverGroups: Type.Array(ServerGroup, { default: [], maxItems: MAX_SERVER_GROUPS }),
    publicKeys: Type.Array(PublicKey, { default: [], maxItems: MAX_PUBLIC_KEYS }),
    tags: TagsSchema,
    blockDevices: Type.Record(BlockDeviceName, BlockDevice, {
      default: {},
      maxProperties: 256,
      description: 'Virtual device (ami, root, swap, ebs1, ephemeral0) to device.',
    }),
    options: OptionsSchema,
    userData: Type.Optional(UserData),
    vendorData: Type.Optional(
      text('a text that is not empty, without NUL and half of a surrogate pair', {
        pattern: '^[^\\x00\\ud800-\\udfff]+$',
        maxLength: MAX_VENDOR_DATA_CHARACTERS,
        description: "The operator's cloud-config, which no seal concerns.",
      }),
    ),
    events: Type.Array(MaintenanceEvent, { default: [], maxItems: MAX_EVENTS }),
    sealedAt: Type.Optional(time('The user-data is sealed since then: guests do not get it, until an unseal.')),
    hypervisors: Type.Array(text('the name of a hypervisor', { pattern: NAME }), {
      minItems: 1,
      maxItems: 2,
      description: 'Where the instance runs: two during a live migration.',
    }),
  },
  { $id: 'imds:instance:1', title: 'imds instance record' },
)
