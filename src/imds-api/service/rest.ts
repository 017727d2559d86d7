/** Builds the REST interface: its HTTP server with all routes, and the parts that issue and check tokens. */
import swagger from '@fastify/swagger'
import { readFileSync } from 'node:fs'
import { buildAudit, type WriteAudit } from '../http/audit.ts'
import { buildAccountChoice, chooseNoAccount, describeClient } from '../auth/account-choice.ts'
import { buildAuthentication } from '../auth/bearer.ts'
import { FailureLimit } from '../../limits/failure-limit.ts'
import { Grants } from '../auth/grants.ts'
import { Lookups } from '../auth/lookups.ts'
import { addIssuerDocuments, type RegionIssuer } from '../auth/region-issuer.ts'
import { addTokenEndpoint } from '../auth/token-endpoint.ts'
import { TokenFamilies } from '../auth/token-families.ts'
import { AccessTokens, EXPIRED_RETENTION_MS } from '../auth/tokens.ts'
import type { ApiConfig } from './config.ts'
import { AccountChanges } from '../changes/account-changes.ts'
import { purgeAssertions } from '../changes/trusted-servers.ts'
import type { Database } from '../database/open.ts'
import { purgeEach } from '../database/purge.ts'
import { addDocsPages } from '../http/docs-pages.ts'
import { completeOpenApi } from '../http/openapi.ts'
import { ABOUT } from '../http/openapi-about.ts'
import { publicDocument } from '../http/public-document.ts'
import { buildEnterShare } from '../http/read-share.ts'
import { addAccountRoutes, addChosenAccountRoute } from '../resources/accounts.ts'
import { addCatalogRoutes } from '../resources/catalog.ts'
import { addApiClientRoutes, addApplicationRoutes } from '../resources/clients.ts'
import { addCloudIpRoutes } from '../resources/cloud-ips.ts'
import { addCollaborationRoutes, addUserCollaborationRoutes } from '../resources/collaborations.ts'
import { Affected } from '../resources/kit/affected.ts'
import { addConfigMapRoutes } from '../resources/config-maps.ts'
import { addEventRoutes } from '../resources/events.ts'
import type { Waits } from '../resources/kit/waits.ts'
import { addDatabaseServerRoutes } from '../resources/database-servers.ts'
import { addUnimplementedRoutes } from '../resources/unimplemented.ts'
import { addImageRoutes } from '../resources/images.ts'
import { addInterfaceRoutes } from '../resources/interfaces.ts'
import { addServerGroupRoutes } from '../resources/server-groups.ts'
import { addServerRoutes } from '../resources/servers.ts'
import { addUserRoutes } from '../resources/users.ts'
import { buildServer, type ApiServer, type ApiServerSettings } from '../http/server.ts'
import { addApiSteps } from '../http/steps.ts'
import type { ReadReports, ResourceParts } from '../resources/kit/parts.ts'
import type { Db } from '../database/transaction.ts'

/** The parts that issue and check tokens. `purge` deletes the expired tokens. */
export interface Auth {
  readonly tokens: AccessTokens
  readonly grants: Grants
  /** Undefined: there are no identity tokens. */
  readonly issuer: RegionIssuer | undefined
  readonly purge: () => Promise<void>
}

/** Builds the parts that issue and check tokens. `now`: milliseconds since 1970. */
export function buildAuth(
  db: Db,
  {
    baseUrl,
    accessTokenSeconds,
    refreshTokenSeconds,
  }: Pick<ApiConfig, 'baseUrl' | 'accessTokenSeconds' | 'refreshTokenSeconds'>,
  issuer: RegionIssuer | undefined,
  now: () => number,
): Auth {
  const steady = () => performance.now()
  const lookups = new Lookups()
  const tokens = new AccessTokens(db, now, steady, lookups)
  const families = new TokenFamilies(db, refreshTokenSeconds, now)
  const failures = new FailureLimit(steady)
  const server = issuer && { issuer, baseUrl }
  return {
    tokens,
    issuer,
    grants: new Grants({ db, tokens, families, failures, lookups, seconds: accessTokenSeconds, server, now }),
    purge: async () => {
      const at = now()
      const keptSince = at - EXPIRED_RETENTION_MS
      const purgeExpired = async () => {
        await families.purgeExpired(at, keptSince)
        await tokens.purge(keptSince)
      }
      await purgeEach([() => families.purgeRevoked(), purgeExpired, () => purgeAssertions(db)])
    },
  }
}

type ServerConfig = Pick<ApiConfig, 'baseUrl' | 'tls' | 'trustedProxies' | 'compute'>

export interface RestParts extends Pick<ApiServerSettings, 'onUnreadable' | 'onShed' | 'databaseReport' | 'log'> {
  readonly config: ServerConfig
  readonly database: Pick<Database, 'db' | 'pool'>
  readonly accounts: AccountChanges
  readonly auth: Pick<Auth, 'tokens' | 'grants' | 'issuer'>
  readonly reports: ReadReports
  readonly waits: Waits
  readonly audit: WriteAudit
}

export async function buildApiServer(parts: RestParts): Promise<ApiServer> {
  const { config, database, auth, waits, audit, onUnreadable, onShed, databaseReport, log } = parts
  const { baseUrl, tls, trustedProxies } = config
  const { db } = database
  const server = buildServer({
    tls: tls && { cert: readFileSync(tls.certificate, 'utf8'), key: readFileSync(tls.key, 'utf8') },
    trustedProxies,
    onUnreadable,
    onShed,
    databaseReport,
    log,
  })
  // of the server itself: hooks of its plugins run only once all connections are closed
  server.addHook('preClose', (done) => {
    waits.close()
    done()
  })
  await addOpenApi(server)
  await addDocsPages(server, baseUrl)
  if (auth.issuer !== undefined) addIssuerDocuments(server, auth.issuer)
  addTokenEndpoint(server, { grants: auth.grants, baseUrl })
  const steps = {
    authenticate: buildAuthentication(auth.tokens),
    enterShare: buildEnterShare(database.pool.options.max),
    audit: buildAudit(audit, describeClient),
  }
  const { compute } = parts.config
  const resources: Omit<ResourceParts, 'server'> = {
    ...parts,
    ...parts.database,
    tokens: parts.auth.tokens,
    site: { baseUrl },
    affected: new Affected(),
    compute,
  }
  for (const { chooseAccount, routes } of routesByAccount(db))
    await server.register(
      (api: ApiServer, _options: object, done: () => void) => {
        addApiSteps(api, { ...steps, chooseAccount })
        for (const addRoutes of routes) addRoutes({ ...resources, server: api })
        done()
      },
      { prefix: '/1.0' },
    )
  server.get(
    '/1.0/openapi.json',
    { schema: { hide: true } },
    publicDocument(() => server.swagger()),
  )
  return server
}

/** Adds the OpenAPI document, and its pages below /docs. */
async function addOpenApi(server: ApiServer): Promise<void> {
  await server.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'imds-api',
        version: '1.0.0beta',
        license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
        contact: { name: 'The operator of the region' },
        description: 'The API of a region.',
      },
      ...ABOUT,
    },
    transformObject: (made) => completeOpenApi((made as Extract<typeof made, { openapiObject: object }>).openapiObject),
  })
}

/** The routes of all resources, by the account that they need: none, any of the user's, or one that is named. */
function routesByAccount(db: Db) {
  return [
    { chooseAccount: chooseNoAccount, routes: [addUserCollaborationRoutes] },
    { chooseAccount: buildAccountChoice(db, false), routes: [addAccountRoutes, addUserRoutes] },
    {
      chooseAccount: buildAccountChoice(db, true),
      routes: [
        addChosenAccountRoute,
        addApiClientRoutes,
        addApplicationRoutes,
        addCatalogRoutes,
        addImageRoutes,
        addServerRoutes,
        addInterfaceRoutes,
        addServerGroupRoutes,
        addCloudIpRoutes,
        addConfigMapRoutes,
        addCollaborationRoutes,
        addDatabaseServerRoutes,
        addEventRoutes,
        addUnimplementedRoutes,
      ],
    },
  ]
}
