/** The description of the whole API in the OpenAPI document. */
import { ALL_ROWS } from '../model/resources.ts'
import type { Scope } from '../model/scopes.ts'

const EVENTS = { name: 'Events', description: 'What has changed in an account.' }
/** The sections of the document. Events follow the servers and their interfaces. */
const TAGS = [
  { name: 'Authentication', description: 'Access tokens.' },
  ...ALL_ROWS.flatMap(({ tag: name, about }) => (about === undefined ? [] : [{ name, description: about }])).toSpliced(
    2,
    0,
    EVENTS,
  ),
]

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
  tags: TAGS,
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
