/**
 * The metadata options and the tags of a server, which are extensions of the API. Their rules are those of the
 * record (docs/record.md). The names of the options have underscores, as all names of the API.
 */
import Type, { type Static } from 'typebox'
import Value from 'typebox/value'
import { OptionsSchema, TagsSchema } from '../../metadata/schema.ts'
import { fieldFault, type Detail } from './refusal.ts'

const {
  httpEndpoint,
  httpTokens,
  httpPutResponseHopLimit,
  httpProtocolIpv6,
  instanceMetadataTags,
  openstack,
  reports,
} = OptionsSchema.properties
export const MetadataOptionsSchema = Type.Object(
  {
    http_endpoint: httpEndpoint,
    http_tokens: httpTokens,
    http_put_response_hop_limit: httpPutResponseHopLimit,
    http_protocol_ipv6: httpProtocolIpv6,
    instance_metadata_tags: instanceMetadataTags,
    openstack,
    reports,
  },
  {
    title: 'MetadataOptions',
    description: "An extension. What the guest gets from the metadata service: EC2's options, and two of our own.",
  },
)
export type MetadataOptions = Static<typeof MetadataOptionsSchema>

export const GivenOptionsSchema = Type.Partial(MetadataOptionsSchema)

/** All options: the given ones, else the present ones, else the defaults. Other members are left out. */
export function completeOptions(given: Static<typeof GivenOptionsSchema>, present: object): MetadataOptions {
  return Value.Clean(
    MetadataOptionsSchema,
    Value.Default(MetadataOptionsSchema, { ...present, ...given }),
  ) as MetadataOptions
}

/**
 * The options as a record has them. Those that were added later are left out while they have their default, so that the
 * record of a revision stays the same after an upgrade.
 */
export function recordOptions(options: MetadataOptions): Partial<Static<typeof OptionsSchema>> {
  return {
    httpEndpoint: options.http_endpoint,
    httpTokens: options.http_tokens,
    httpPutResponseHopLimit: options.http_put_response_hop_limit,
    httpProtocolIpv6: options.http_protocol_ipv6,
    instanceMetadataTags: options.instance_metadata_tags,
    ...(options.openstack === 'enabled' && { openstack: options.openstack }),
    ...(options.reports === 'enabled' && { reports: options.reports }),
  }
}

const [KEY_OF_RECORD] = Object.keys(TagsSchema.patternProperties)

/**
 * What is wrong with tags that have the form of the schema; undefined: nothing. A record would lose such tags, or no
 * path can name them.
 */
export function tagsFault(tags: Readonly<Record<string, unknown>>): Detail | undefined {
  const isKey = new RegExp(KEY_OF_RECORD!, 'u')
  if (!Object.keys(tags).every((key) => key !== '' && isKey.test(key))) {
    return fieldFault('tags', 'malformed', 'tags must have keys of at least one character, without line breaks')
  }
  return Object.entries(tags)
    .flat()
    .every((text) => (text as string).isWellFormed())
    ? undefined
    : fieldFault('tags', 'malformed', 'tags must not have half of a surrogate pair')
}
