/** The OpenAPI document: a linter, rules about its schemas, and its examples, each of which is sent to the demo's region. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { REGION } from '../../src/imds-api/demo.ts'
import { installTools } from '../support/tools.ts'
import { readDocument } from '../support/openapi-document.ts'
import { anApi, basic, type Method } from '../support/programs/api.ts'
import { programEnvironment } from '../support/programs/imds.ts'
import { testDirectory } from '../support/test-directory.ts'

type Schema = Readonly<Record<string, unknown>>
interface Parameter {
  readonly in: string
  readonly name: string
  readonly example?: string
}
interface Operation {
  readonly operationId: string
  readonly parameters?: readonly Parameter[]
  readonly requestBody?: { readonly content: Readonly<Record<string, { readonly example?: object }>> }
  readonly responses: Readonly<Record<string, { readonly content?: object }>>
}
interface Document {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>
  readonly components: { readonly schemas: Readonly<Record<string, Schema>> }
}

const [client] = REGION.api_clients
const api = await anApi(t, {
  region: { ...REGION, api_clients: [{ ...client!, secret_file: `${client!.id}.secret` }] },
  store: { url: 'redis:', recordKeysFile: '/keys' },
})
await api.startPublisher()
const text = (await api.server.inject('/1.0/openapi.json')).body
const document = JSON.parse(text) as Document

t.test('the document is shorter than 160 KB', (t) => {
  t.ok(text.length < 160_000, String(text.length))
  t.end()
})

t.test('redocly finds nothing to say of the document by its recommended rules', async (t) => {
  const file = join(testDirectory(t), 'openapi.json')
  writeFileSync(file, text)
  const child = spawn('redocly', ['lint', '--extends', 'recommended', '--format', 'json', file], {
    cwd: t.testdirName,
    env: {
      ...programEnvironment(),
      PATH: `${installTools('api')}node_modules/.bin:${process.env['PATH']!}`,
      REDOCLY_TELEMETRY: 'off',
      REDOCLY_SUPPRESS_UPDATE_NOTICE: 'true',
    },
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  const [chunks] = await Promise.all([child.stdout.toArray(), once(child, 'close')])
  const { totals, problems } = JSON.parse(Buffer.concat(chunks as Buffer[]).toString()) as {
    totals: object
    problems: readonly object[]
  }
  t.match(totals, { errors: 0, warnings: 0 }, JSON.stringify(problems).slice(0, 2_000))
})

/** The keywords that schemas may have: those of JSON Schema that the document needs. */
const KEYWORDS = [
  ...['$ref', 'type', 'title', 'description', 'examples', 'default', 'const', 'enum', 'format', 'pattern'],
  ...['minLength', 'maxLength', 'minimum', 'maximum', 'minItems', 'maxItems', 'maxProperties'],
  ...['properties', 'patternProperties', 'propertyNames', 'additionalProperties', 'required', 'items', 'anyOf'],
]
/** The formats of fields, by their names. */
const FORMATS: readonly (readonly [RegExp, string])[] = [
  [/_at$|_expires$/, 'date-time'],
  [/^url$|_url$/, 'uri'],
  [/ipv4/, 'ipv4'],
  [/ipv6$/, 'ipv6'],
  [/^email(_address)?$/, 'email'],
  [/^(fqdn|hostname)$/, 'hostname'],
]
/** The forms of resources. Fields of requests may be texts that a change refuses. */
const isForm = ({ properties = {} }: Schema) => 'resource_type' in (properties as object)

t.test('the schemas keep the rules', (t) => {
  const faults: string[] = []
  const visit = (schema: Schema, place: string): void => {
    for (const keyword of Object.keys(schema)) if (!KEYWORDS.includes(keyword)) faults.push(`${place}: ${keyword}`)
    const {
      properties = {},
      required = [],
      items,
      anyOf = [],
      additionalProperties,
    } = schema as {
      readonly properties?: Readonly<Record<string, Schema>>
      readonly required?: readonly string[]
      readonly items?: Schema
      readonly anyOf?: readonly Schema[]
      readonly additionalProperties?: Schema
    }
    for (const name of required) if (!(name in properties)) faults.push(`${place}: ${name} is required, but unknown`)
    if (schema['enum'] !== undefined && schema['type'] === undefined) faults.push(`${place}: an enum without a type`)
    for (const [name, property] of Object.entries(properties)) {
      const field = `${place}.${name}`
      const kinds = property['anyOf'] === undefined ? [property] : (property['anyOf'] as readonly Schema[])
      const some = (keyword: string) => kinds.find((kind) => kind[keyword] !== undefined)?.[keyword]
      const [, format] = FORMATS.find(([pattern]) => pattern.test(name)) ?? []
      if (isForm(schema) && name === 'status' && some('enum') === undefined && some('examples') === undefined)
        faults.push(`${field}: its values are unknown`)
      if (isForm(schema) && format !== undefined && some('type') === 'string' && some('format') !== format)
        faults.push(`${field}: not ${format}`)
      if (
        ['type', '$ref', 'description'].every(
          (keyword) => some(keyword) === undefined && property[keyword] === undefined,
        )
      )
        faults.push(`${field}: anything`)
    }
    const below = [...Object.entries(properties), ...anyOf.map((one) => ['', one] as const)]
    for (const [name, one] of below) visit(one, `${place}.${name}`)
    if (items !== undefined) visit(items, `${place}[]`)
    if (typeof additionalProperties === 'object') visit(additionalProperties, `${place}.*`)
  }
  for (const [name, schema] of Object.entries(document.components.schemas)) visit(schema, name)
  t.strictSame(faults, [])
  t.end()
})

t.test('the document has the version, the schemes of access, and both types of a token request', (t) => {
  const { info, servers, security, components, paths } = document as Document & Readonly<Record<string, object>>
  t.match(
    [info, servers, security],
    [{ version: '1.0.0beta' }, [{ url: '/' }], [{ oauth2: ['infrastructure'] }, { token: [] }]],
  )
  t.match(components, { securitySchemes: { oauth2: { flows: { clientCredentials: { tokenUrl: '/token' } } } } })
  const types = ['application/json', 'application/x-www-form-urlencoded']
  t.strictSame(Object.keys(paths['/token']!['post']!.requestBody!.content), types)
  t.end()
})

t.test('filters have the states that exist, and a form of tags that generators send right', (t) => {
  const filters = document.paths['/1.0/servers']!['get']!.parameters!
  t.match(
    filters.find(({ name }) => name === 'status'),
    { schema: { enum: ['creating', 'active', 'inactive', 'deleting', 'deleted', 'failed', 'unavailable'] } },
  )
  t.match(
    filters.find(({ name }) => name === 'tags'),
    { style: 'deepObject', explode: true, schema: { type: 'object' } },
  )
  t.end()
})

t.test('each body is a component or a list of one, or has the fields of it that the request names', (t) => {
  const faults: string[] = []
  for (const { operationId, requestBody, responses } of Object.values(document.paths).flatMap((path) =>
    Object.values(path),
  ))
    for (const { content = {} } of [...Object.values(responses), ...(requestBody === undefined ? [] : [requestBody])])
      for (const { schema } of Object.values(content) as { schema: Schema & { readonly items?: Schema } }[])
        for (const one of ((schema.items ?? schema)['anyOf'] ?? [schema.items ?? schema]) as readonly Schema[])
          if (one['$ref'] === undefined) faults.push(operationId)
  t.strictSame(faults, [])
  t.end()
})

t.test('no operation takes a body that is null, since all refuse it', async (t) => {
  const { paths } = await readDocument<Document>(api.server)
  const bodies = Object.values(paths)
    .flatMap((path) => Object.values(path))
    .flatMap(({ operationId, requestBody: { content } = { content: {} } }) =>
      (Object.values(content) as { schema: { type?: string; anyOf?: { type?: string }[] } }[]).map(({ schema }) => ({
        operationId,
        types: [schema, ...(schema.anyOf ?? [])].map(({ type }) => type),
      })),
    )
  t.ok(bodies.length > 20)
  t.strictSame(
    bodies.filter(({ types }) => types.includes('null')),
    [],
  )
})

/** The operations whose resources others need, in their order. */
const FIRST = ['createServer', 'createServerGroup', 'createCloudIp', 'createConfigMap', 'createApiClient']
/** What has to be sent before an operation. */
const BEFORE: Readonly<Record<string, string>> = {
  updateImage: 'snapshotServer',
  moveServersToGroup: 'addServersToGroup',
}

/** A resource with an id, which an API client can read. The ids of events are random. */
const MEMBER = /^\/1\.0\/(?!user\/|events\/)\w+\/\{id\}$/

t.test('each body and id has an example, which works as it is in the region of the demo', async (t) => {
  const { paths } = await readDocument<Document>(api.server)
  const operations = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, ...operation })),
  )
  const withBody = operations.filter(({ requestBody }) => requestBody !== undefined)
  const orderOf = ({ operationId, method }: (typeof operations)[number]) =>
    (FIRST.includes(operationId) ? FIRST.indexOf(operationId) : FIRST.length) + (method === 'post' ? 0 : 1)
  const bearer = await api.token(client!.id)
  const send = async ({ path, method, parameters = [], requestBody }: (typeof operations)[number]) => {
    const url = path.replaceAll(/\{(\w+)\}/g, (_all, name: string) => {
      const { example } = parameters.find((parameter) => parameter.in === 'path' && parameter.name === name)!
      return example!
    })
    const { example } = requestBody?.content['application/json'] ?? {}
    if (requestBody !== undefined) t.ok(example, `${method} ${path} has an example`)
    const { statusCode, body } = await api.server.inject({
      method: method.toUpperCase() as Method,
      url,
      headers: { authorization: path === '/token' ? basic(client!.id) : `Bearer ${bearer}` },
      ...(example !== undefined && { payload: example }),
    })
    t.ok(statusCode < 300, `${method} ${url}: ${statusCode} ${body.slice(0, 300)}`)
  }
  for (const operation of withBody.sort((a, b) => orderOf(a) - orderOf(b))) {
    const before = BEFORE[operation.operationId]
    if (before !== undefined) await send(operations.find(({ operationId }) => operationId === before)!)
    await send(operation)
    if (operation.operationId === 'createServer') await api.drained() // so that it is active
  }
  t.ok(withBody.length > 20)
  const members = operations.filter(({ path, method }) => method === 'get' && MEMBER.test(path))
  for (const operation of members) await send(operation)
  t.ok(members.length > 10)
})
