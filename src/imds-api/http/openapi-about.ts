/** The description of the whole API in the OpenAPI document. */
import type { Scope } from '../model/scopes.ts'

/** The subjects of operations. */
const TAGS = {
  Authentication: 'Access tokens.',
  Servers: 'Virtual machines, which guests know as instances.',
  Interfaces: 'The network interfaces of servers.',
  Events: 'What has changed in an account.',
  'Server groups': 'Sets of servers, which guests see as security groups.',
  'Cloud IPs': 'Public addresses that an account can move between servers.',
  Images: 'Disks from which servers are made.',
  'Server types': 'Sizes of servers.',
  Zones: 'Places of a region.',
  'Database servers': 'Databases that the region runs for the account.',
  'Config maps': 'JSON of any content, with a name.',
  Accounts: 'Who owns resources, their limits, and the issuer of identity tokens.',
  Users: 'People who own accounts or work for them.',
  'API clients': 'Programs that act for an account.',
  Applications: 'Programs with which users sign in.',
  Collaborations: 'The access of users to the accounts of others.',
}

const SCOPES: Readonly<Record<Scope, string>> = {
  infrastructure: 'Every operation below /1.0.',
  orbit: 'The object store of a region, which is not part of this API.',
}
const TOKEN_ENDPOINT = { tokenUrl: '/token', scopes: SCOPES }
/**
 * The tags, servers and security schemes. The URLs are relative, so pages and clients send their requests to the host
 * of the document.
 */
export const ABOUT = {
  tags: Object.entries(TAGS).map(([name, description]) => ({ name, description })),
  servers: [{ url: '/' }],
  components: {
    securitySchemes: {
      oauth2: {
        type: 'oauth2' as const,
        description: 'The id and secret of an API client; or of an application, and the password of a user.',
        flows: { clientCredentials: TOKEN_ENDPOINT, password: { ...TOKEN_ENDPOINT, refreshUrl: '/token' } },
      },
      token: { type: 'http' as const, scheme: 'bearer', description: 'An access token of /token.' },
      client: {
        type: 'http' as const,
        scheme: 'basic',
        description: 'The id and secret of an API client or application.',
      },
    },
  },
  security: [{ oauth2: ['infrastructure' satisfies Scope] }, { token: [] }],
}
