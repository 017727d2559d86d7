/**
 * The documents of the operator API, declared once for the server, the client, imdsctl and the firewall agent.
 * server.ts says which path answers which; imdsd/firewall/document.ts has the firewall's. The daemon imports only types from
 * here: it need not load TypeBox.
 */
import Type, { type Static } from 'typebox'

/** The conditions that a program has found now (conditions/condition.ts), failures first. */
const ConditionsSchema = Type.Array(
  Type.Object({
    code: Type.String(),
    severity: Type.Union([Type.Literal('failure'), Type.Literal('warning')]),
    text: Type.String(),
    remedy: Type.String(),
    unready: Type.Optional(Type.Boolean()),
  }),
  {
    description:
      'What is wrong, failures first: `code`, `severity` (failure or warning), `text`, `remedy`, and `unready` if it is not ready because of it.',
  },
)

/** `ready` decides the status of /readyz. */
export const ReadinessSchema = Type.Object({
  ready: Type.Boolean({ description: 'True with status 200, false with 503.' }),
  conditions: ConditionsSchema,
  version: Type.String({ description: 'The version of imdsd.' }),
  store: Type.String({ description: 'The store, without secrets.' }),
  connected: Type.Boolean({ description: 'Whether the store is connected.' }),
  instances: Type.Integer({ description: 'Instances that this hypervisor serves.' }),
  viewAgeSeconds: Type.Number({ description: 'Seconds since the last full comparison with the store.' }),
  absent: Type.Integer({ description: 'Instances that are served although the store no longer has them.' }),
  faulty: Type.Integer({ description: 'Faulty records of this hypervisor.' }),
  contestedAddresses: Type.Integer({ description: 'Addresses and prefixes that several instances claim.' }),
  unconfirmedAddresses: Type.Integer({
    description: 'Addresses and prefixes that wait for the firewall.',
  }),
  firewall: Type.Object({
    required: Type.Boolean({ description: 'Whether IMDS_FIREWALL is "required".' }),
    applied: Type.Boolean({ description: 'Whether the rules in the kernel match the view.' }),
    ageSeconds: Type.Number({ description: 'Seconds since the agent last confirmed its rules.' }),
    failed: Type.Optional(Type.String({ description: 'Why the agent cannot apply newer rules.' })),
  }),
})
export type Readiness = Static<typeof ReadinessSchema>

/**
 * The launch gate's answer. `revision`: the revision that this daemon serves, or null. `order`: its place in the order of
 * the region. `final`: the guest can never be started with this record.
 */
export const InstanceStateSchema = Type.Object({
  id: Type.String(),
  revision: Type.Union([Type.Integer(), Type.Null()]),
  order: Type.Optional(Type.Integer()),
  reason: Type.Optional(Type.String()),
  final: Type.Optional(Type.Literal(true)),
})
export type InstanceState = Static<typeof InstanceStateSchema>

/** The last request of a guest for a kind of path (contract H10). `at`: in ISO 8601. */
const AskedForSchema = Type.Object({
  topic: Type.String({ description: 'The kind of path: TOPICS in metadata/target.ts.' }),
  at: Type.String(),
  status: Type.Integer(),
  reason: Type.String({ description: '"served", or the reason of the refusal as metrics and logs name it.' }),
  userAgent: Type.Optional(Type.String({ description: 'Its first characters.' })),
  count: Type.Integer({ description: 'How many there were since the instance is served here.' }),
})
export type AskedFor = Static<typeof AskedForSchema>

/** What a guest has reported (contract H9). Nothing of it is verified. `allowed`: whether its record lets it report. */
export const ReportsSchema = Type.Object({
  id: Type.String(),
  allowed: Type.Boolean(),
  claimedByGuest: Type.Object({
    reports: Type.Array(Type.Object({ name: Type.String(), text: Type.String(), receivedAt: Type.String() })),
    knownHosts: Type.Array(Type.String(), { description: 'The SSH keys in them, as lines of a known_hosts file.' }),
  }),
})
export type ReportsDocument = Static<typeof ReportsSchema>

/**
 * What a guest at an address would get, and why. The fields after `because` are present if the address belongs to an
 * instance.
 */
export const ExplanationSchema = Type.Object({
  network: Type.String(),
  address: Type.String(),
  answer: Type.String({
    description: '"metadata", the reason of the refusal as metrics and logs name it, or "no-listener".',
  }),
  status: Type.Optional(
    Type.Integer({
      description:
        'Absent with "no-listener", and for an unknown peer that the firewall keeps out: it cannot connect to the daemon.',
    }),
  ),
  because: Type.String(),
  instance: Type.Optional(
    Type.Object({ id: Type.String(), revision: Type.Integer(), hypervisors: Type.Array(Type.String()) }),
  ),
  sessionTokens: Type.Optional(Type.Union([Type.Literal('required'), Type.Literal('optional')])),
  userData: Type.Optional(Type.String()),
  hopLimit: Type.Optional(Type.Object({ limit: Type.Integer(), enforced: Type.Boolean() })),
  firewall: Type.Optional(Type.String({ description: 'Why the firewall keeps the guest out.' })),
  listener: Type.Optional(Type.String({ description: 'Why no packet of the guest reaches the listener.' })),
  store: Type.Optional(Type.String({ description: 'What is wrong with its record in the store, or with the store.' })),
  packets: Type.Optional(
    Type.Record(Type.String(), Type.Integer(), {
      description:
        'What the firewall has counted for all guests of this hypervisor: admitted packets, and dropped ones by reason.',
    }),
  ),
  requests: Type.Optional(
    Type.Array(AskedForSchema, { description: 'What the guest has asked for, the latest first.' }),
  ),
})
export type Explanation = Static<typeof ExplanationSchema>

/**
 * What the guest of an instance would get at each of its addresses. `revision`: absent if the daemon does not serve the
 * instance, and `reason` then says why. `more`: how many addresses are left out.
 */
export const InstanceExplanationSchema = Type.Object({
  id: Type.String(),
  revision: Type.Optional(Type.Integer()),
  reason: Type.Optional(Type.String()),
  addresses: Type.Array(ExplanationSchema),
  more: Type.Integer(),
})
export type InstanceExplanation = Static<typeof InstanceExplanationSchema>
