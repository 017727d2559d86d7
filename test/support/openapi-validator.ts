/**
 * Checks responses against the OpenAPI document: the status, each header, and the body, whose objects have no field that
 * the document does not name.
 */
import type { InjectOptions, LightMyRequestResponse } from 'fastify'
import { Compile } from 'typebox/schema'
import type { ApiServer } from '../../src/imds-api/http/server.ts'
import { referred } from './openapi-document.ts'

/** A response as it arrived. */
interface SentResponse {
  readonly status: number
  readonly headers: Readonly<Record<string, unknown>>
  readonly text: string
}

type Schema = Readonly<Record<string, unknown>>
type Operations = Readonly<Record<string, { readonly responses: Readonly<Record<string, object>> }>>
interface Document {
  readonly paths: Readonly<Record<string, Operations>>
  readonly components: Schema
}
interface Response {
  readonly headers?: Readonly<Record<string, object>>
  readonly content?: Readonly<Record<string, { readonly schema: Schema }>>
}

/** Headers of HTTP itself, and of any response (docs/api.md): the document does not repeat them. */
const KNOWN = new Set([
  ...['connection', 'content-length', 'content-type', 'date', 'keep-alive', 'transfer-encoding'],
  ...['x-request-id', 'cache-control', 'pragma', 'x-oauth-scopes', 'idempotent-replayed', 'idempotent-omitted'],
])
const OF_ERRORS = new Set([
  ...['www-authenticate', 'retry-after', 'ratelimit', 'ratelimit-policy', 'etag', 'x-service-otp', 'x-brightbox-otp'],
])
/** An invitation that is sent again counts for a rate limit. */
const LIMITED = '/resend'

/** The servers of all tests have one document, since no test has other headers of one-time passwords. */
let validator: DocumentValidator | undefined

/** Has each response that a test injects checked against the server's document: what it does not allow is thrown. */
export function checkResponses(server: ApiServer): void {
  const inject = server.inject.bind(server) as (options: InjectOptions | string) => Promise<LightMyRequestResponse>
  const checked = async (options: InjectOptions | string) => {
    const response = await inject(options)
    validator ??= new DocumentValidator(server.swagger())
    const { method = 'GET', url } = typeof options === 'string' ? { url: options } : options
    const { statusCode: status, headers, body: text } = response
    const faults = validator.faultsOf(method, url as string, { status, headers, text })
    if (faults.length === 0) return response
    throw new Error(
      `the OpenAPI document of ${method} ${url as string} (${status}) does not allow ${faults.join('; ')}`,
    )
  }
  server.inject = checked as typeof server.inject
}

/** The checks of one document. Each schema is compiled at its first use. */
export class DocumentValidator {
  readonly #document: Document
  readonly #components: unknown
  readonly #paths: readonly { readonly pattern: RegExp; readonly operations: Operations }[]
  readonly #compiled = new Map<string, (value: unknown) => string | undefined>()

  constructor(document: object) {
    this.#document = document as Document
    this.#components = closed(this.#document.components)
    this.#paths = Object.entries(this.#document.paths).map(([path, operations]) => ({
      pattern: new RegExp(`^${path.replaceAll('.', '\\.').replaceAll(/\{\w+\}/g, '[^/]+')}/?$`),
      operations,
    }))
  }

  /** What the document does not allow. A path that it does not have allows everything. */
  faultsOf(method: string, url: string, { status, headers, text }: SentResponse): readonly string[] {
    const operation = this.#operation(method, url)
    if (operation === undefined) return []
    const response = operation.responses[String(status)] ?? operation.responses[`${Math.floor(status / 100)}XX`]
    if (response === undefined) return [`the status ${status}`]
    const { headers: named = {}, content } = this.#resolve(response) as Response
    const known = new Set([...Object.keys(named).map((name) => name.toLowerCase()), ...KNOWN])
    const isLimited = status >= 400 || url.split('?')[0]!.endsWith(LIMITED)
    return [
      ...(headers['x-request-id'] === undefined ? ['no header X-Request-Id'] : []),
      ...(known.has('etag') && headers['etag'] === undefined ? ['no header ETag'] : []),
      ...Object.keys(headers)
        .filter((name) => !known.has(name) && !(isLimited && OF_ERRORS.has(name)))
        .map((name) => `the header ${name}`),
      ...(method === 'HEAD' ? [] : this.#bodyFaults(content, headers['content-type'], text)),
    ]
  }

  /** True if the document has an operation for these requests. */
  has(method: string, url: string): boolean {
    return this.#operation(method, url) !== undefined
  }

  #operation(method: string, url: string): Operations[string] | undefined {
    const path = url.split('?', 1)[0]!
    const found = this.#paths.find(({ pattern }) => pattern.test(path))
    return found?.operations[method === 'HEAD' ? 'get' : method.toLowerCase()]
  }

  #bodyFaults(content: Response['content'], type: unknown, text: string): readonly string[] {
    if (content === undefined) return text === '' ? [] : ['a body']
    if (typeof type !== 'string') return ['a body without a type']
    const media = content[type.split(';', 1)[0]!]
    if (media === undefined) return [`the type "${type}"`]
    if (!type.startsWith('application/json')) return []
    const fault = this.#fault(media.schema, JSON.parse(text))
    return fault === undefined ? [] : [`the body ${text.slice(0, 1_000)}: ${fault}`]
  }

  #resolve(value: object): unknown {
    const { $ref: reference } = value as { readonly $ref?: string }
    return reference === undefined ? value : referred(this.#document, reference)
  }

  #fault(schema: Schema, value: unknown): string | undefined {
    const key = JSON.stringify(schema)
    let check = this.#compiled.get(key)
    if (check === undefined) {
      const compiled = Compile({ ...(closed(schema) as object), components: this.#components } as object)
      check = (given) => {
        if (compiled.Check(given)) return undefined
        const [, errors] = compiled.Errors(given)
        return errors
          .slice(0, 5)
          .map(({ instancePath, message, params }) => `${instancePath} ${message} ${JSON.stringify(params)}`)
          .join('; ')
      }
      this.#compiled.set(key, check)
    }
    return check(value)
  }
}

/** The same schemas, whose objects with properties have no others. */
function closed(schema: unknown): unknown {
  if (typeof schema !== 'object' || schema === null) return schema
  if (Array.isArray(schema)) return schema.map(closed)
  const entries = Object.fromEntries(Object.entries(schema).map(([name, value]) => [name, closed(value)]))
  const { properties, additionalProperties, patternProperties } = entries
  const isOpen =
    typeof properties !== 'object' ||
    Object.keys(properties ?? {}).length === 0 ||
    additionalProperties !== undefined ||
    patternProperties !== undefined
  return isOpen ? entries : { ...entries, additionalProperties: false }
}
