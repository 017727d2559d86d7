/** Cloud IPs: public addresses that an account can move between servers. changes/cloud-ips.ts has their states. */
import { sql } from 'kysely'
import Type, { type Static } from 'typebox'
import {
  cloudIpCanBecome,
  createCloudIp,
  deleteCloudIp,
  mapCloudIp,
  unmapCloudIp,
  updateCloudIp,
  type CloudIpValues,
} from '../changes/cloud-ips.ts'
import { formatId } from '../model/ids.ts'
import type { PortTranslator } from '../model/port-translator.ts'
import { fieldFault, refuse, refuseAny, type Detail } from '../model/refusal.ts'
import { alwaysNull, Form, optionalLink } from './kit/forms.ts'
import { equals } from './kit/lists.ts'
import { Members } from './kit/members.ts'
import { addWait } from './kit/waiting.ts'
import { ACCOUNT, NESTED, unimplementedForm } from './nested.ts'
import type { ResourceParts } from './kit/parts.ts'
import { GivenName, givenTexts } from './kit/schemas.ts'

const Port = Type.Integer({ minimum: 1, maximum: 65_535 })
/** Clients send ports as text too. */
const GivenPort = Type.Union([Port, Type.String({ pattern: '^[0-9]{1,5}$', hint: 'a port from 1 to 65535' })], {
  examples: [80],
})
const Protocol = Type.Union([Type.Literal('tcp'), Type.Literal('udp')], { examples: ['tcp'] })
const PortTranslators = Type.Array(Type.Object({ protocol: Protocol, incoming: Port, outgoing: Port }))
const Update = Type.Partial(
  Type.Object({
    name: GivenName,
    reverse_dns: Type.Union([Type.Null(), Type.Literal(''), Type.String({ format: 'pointer-name' })], {
      description: 'Null and an empty text clear it.',
    }),
    port_translators: Type.Array(Type.Object({ protocol: Protocol, incoming: GivenPort, outgoing: GivenPort }), {
      maxItems: 100,
    }),
    mode: Type.Unknown({ description: 'nat, null or empty. Anything else is 501.' }),
  }),
  {
    title: 'CloudIpFields',
    examples: [{ name: 'www', port_translators: [{ protocol: 'tcp', incoming: 443, outgoing: 8443 }] }],
  },
)

const NO_OTHER_MODE = refuse(
  'not_implemented',
  fieldFault('mode', 'unchangeable', 'mode is not implemented: it is always nat'),
)

/** The full form, which is the collected form too. */
const CloudIp = new Form('cloudIp', {
  ...NESTED.cloudIp.fields,
  port_translators: PortTranslators,
  account: ACCOUNT,
  interface: optionalLink(NESTED.interface, sql`interfaces.id = cloud_ips.interface_id`),
  server: optionalLink(
    NESTED.server,
    sql`servers.id = (select server_id from interfaces where interfaces.id = cloud_ips.interface_id)`,
  ),
  server_group: optionalLink(NESTED.serverGroup, sql`server_groups.id = cloud_ips.server_group_id`),
  load_balancer: alwaysNull(unimplementedForm('LoadBalancer', 'load_balancer')),
  database_server: optionalLink(NESTED.databaseServer, sql`database_servers.id = cloud_ips.database_server_id`),
})

export function addCloudIpRoutes(parts: ResourceParts): void {
  const cloudIps = new Members(parts, { form: CloudIp })

  cloudIps.list({
    description: 'Those of the account.',
    filters: { server_group: equals('cloud_ips.server_group_id', { idOf: 'grp' }) },
  })
  cloudIps.get('With what it is mapped to.')
  addWait(cloudIps, parts, cloudIpCanBecome)
  cloudIps.create(
    {
      description: 'The region chooses its addresses. It is not mapped yet.',
      body: Update,
      status: 201,
    },
    ({ tx, accountId, body }) => createCloudIp(tx, accountId, valuesOf(body)),
  )
  const change = {
    description: 'Fields that are left out stay.',
    body: Update,
  } as const
  cloudIps.update(change, ({ tx, accountId, id, body }) => updateCloudIp(tx, accountId, id, valuesOf(body)))
  cloudIps.remove(
    { description: 'Its address goes back to the region. Refused (409) while it is mapped.' },
    ({ tx, accountId, id }) => deleteCloudIp(tx, accountId, id),
  )
  cloudIps.action(
    'map',
    {
      description:
        'To an interface, to every member of a server group, to a database server, ' +
        'or (as old clients do) to the first interface of a server.',
      body: Type.Object(
        { destination: Type.String() },
        { title: 'CloudIpMapping', examples: [{ destination: formatId('int', 1) }] },
      ),
      status: 202,
    },
    ({ tx, accountId, id, body }) => mapCloudIp(tx, accountId, id, body.destination),
  )
  cloudIps.action('unmap', { description: 'Its address stays in the account.', status: 202 }, ({ tx, accountId, id }) =>
    unmapCloudIp(tx, accountId, id),
  )
}

/** What a request sets. An empty reverse_dns clears it. Refuses wrong port translators, all at once. */
function valuesOf({ name, reverse_dns, port_translators, mode }: Static<typeof Update>): CloudIpValues {
  if (!['nat', '', null, undefined].includes(mode as string)) throw NO_OTHER_MODE
  const translators = port_translators?.map(({ protocol, incoming, outgoing }): PortTranslator => ({
    protocol,
    incoming: Number(incoming),
    outgoing: Number(outgoing),
  }))
  refuseAny('unprocessable_entity', translatorFaults(translators ?? []))
  return {
    ...givenTexts({ name }),
    ...(reverse_dns !== undefined && { reverse_dns: reverse_dns === '' ? null : reverse_dns }),
    ...(translators !== undefined && { port_translators: translators }),
  }
}

function translatorFaults(translators: readonly PortTranslator[]): readonly Detail[] {
  const isPort = (port: number) => port >= 1 && port <= 65_535
  return translators.flatMap(({ protocol, incoming, outgoing }, i) => {
    const field = `port_translators.${i}`
    const first = translators.findIndex((other) => other.protocol === protocol && other.incoming === incoming)
    return [
      ...(isPort(incoming) && isPort(outgoing)
        ? []
        : [fieldFault(field, 'out_of_range', `${field} must have ports from 1 to 65535`)]),
      ...(first < i
        ? [fieldFault(field, 'not_allowed', `${field} has the protocol and incoming port of an earlier one`)]
        : []),
    ]
  })
}
