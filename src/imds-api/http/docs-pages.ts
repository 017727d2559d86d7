/**
 * The pages below /docs: the reference of the API, in which every request can be tried (Swagger UI), and the guide. They
 * load nothing from other origins, and run no script but the files of Swagger UI. `/` and `/1.0` say where they are.
 */
import swaggerUi, { type FastifySwaggerUiOptions } from '@fastify/swagger-ui'
import { notFound } from '../model/refusal.ts'
import { publicDocument } from './public-document.ts'
import type { ApiServer } from './server.ts'

/** Without a query: Swagger UI takes the whole URL of the page as the directory of its document. */
const PATH = '/docs'
const HEADERS = {
  'content-security-policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
}
const SWAGGER_UI: FastifySwaggerUiOptions = {
  routePrefix: PATH,
  theme: { title: 'imds-api' },
  initOAuth: { scopes: ['infrastructure'] },
  uiConfig: {
    layout: 'BaseLayout', // without a field for the URL of another document
    docExpansion: 'none',
    defaultModelsExpandDepth: 0,
    // Runs in the browser. Without it, the browser asks for a user and a password itself when a secret is wrong (401).
    requestInterceptor: (request) => ({ ...request, credentials: 'omit' }),
  },
}

/** Adds the pages, and `/` and `/1.0`. The server has @fastify/swagger. `baseUrl`: of this region, for the examples. */
export async function addDocsPages(server: ApiServer, baseUrl: string): Promise<void> {
  const about = {
    name: 'imds-api',
    description: 'The REST interface of a region: servers, images, cloud IPs and what belongs to them.',
    documentation: `${baseUrl}${PATH}`,
    openapi: `${baseUrl}/1.0/openapi.json`,
  }
  const sendAbout = publicDocument(() => about)
  for (const path of ['/', '/1.0']) server.get(path, { schema: { hide: true } }, sendAbout)
  await server.register(async (pages: ApiServer) => {
    const sendDocument = publicDocument(() =>
      documentOfPage(server.swagger() as unknown as Readonly<Record<string, unknown>>),
    )
    pages.addHook('onRequest', (request, reply, done) => {
      void reply.headers(HEADERS)
      const { url } = request.routeOptions
      if (url === PATH && request.url.includes('?')) void reply.redirect(`${PATH}/`)
      else if (url === `${PATH}/json`) sendDocument(request, reply)
      else if (url === `${PATH}/yaml`) done(notFound(url)) // it would be made for each request
      else done()
    })
    await pages.register(swaggerUi, SWAGGER_UI)
  })
}

/**
 * The document of the API without what is no choice in the page: the only server, and all ways to sign in but one, each
 * of which would be one more form. Users sign in with a password, a one-time password and an application of theirs.
 */
function documentOfPage({ servers: _only, ...document }: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const components = document['components'] as {
    readonly securitySchemes: { readonly oauth2: { readonly flows: { readonly clientCredentials: object } } }
  }
  const { oauth2 } = components.securitySchemes
  const { clientCredentials } = oauth2.flows
  return {
    ...document,
    components: { ...components, securitySchemes: { oauth2: { ...oauth2, flows: { clientCredentials } } } },
  }
}
