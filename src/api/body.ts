/**
 * The body of a request. An empty one is no body, whatever its headers say: curl and Python send a Content-Type with it. Any other is UTF-8, with or
 * without a byte order mark, in a type that the route takes. A body above the limit is read and discarded, within bounds: many clients send all of a body
 * before they read the response, and closing the connection earlier would destroy it.
 *
 * JSON.parse makes a member of any name, `__proto__` too, an own property. Nothing assigns the members of a body to another object, so no prototype
 * changes.
 */
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { MIMEType } from 'node:util'
import type { Readable } from 'node:stream'
import { refuse, statusOf, type Refusal } from './refusal.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** The text of the body, without the byte order mark. */
    bodyText: string
  }
}

/** The limit of most routes, in bytes. It has room for a server with 16 KiB of user_data in base64. */
export const BODY_LIMIT = 1 << 18

/** How many bytes above the limit are read and discarded. Node's request timeout bounds the time. */
const DISCARD_MAX_BYTES = 8 * 2 ** 20

/** Drops a byte order mark, and throws a TypeError if the bytes are not UTF-8. */
const UTF8 = new TextDecoder('utf-8', { fatal: true })

/** The parser of each media type. It gets the text of the body, and may throw a SyntaxError or a RefusedBody. */
export type BodyParsers = Readonly<Record<string, (text: string) => unknown>>

/** The parsers of most routes. */
export const JSON_BODIES: BodyParsers = { 'application/json': JSON.parse }

/** Thrown for a body that is refused. */
export class RefusedBody extends Error {
  readonly refusal: Refusal
  readonly statusCode: number

  constructor(refusal: Refusal) {
    super(refusal.errors[0])
    this.refusal = refusal
    this.statusCode = statusOf(refusal.name)
  }
}

/** Prepares a whole server for bodies. Without a body, the handler gets an empty object. */
export function takeBodies(server: FastifyInstance): void {
  server.decorateRequest('bodyText', '')
  server.addHook('onRequest', (request, _reply, done) => {
    if (typeOf(request) === undefined) delete request.headers['content-type'] // Fastify would refuse it before it looks for a body
    done()
  })
  server.addHook('preValidation', (request, _reply, done) => {
    request.body ??= {}
    done()
  })
  setBodyParsers(server, BODY_LIMIT, JSON_BODIES)
}

/** Replaces the limit, in bytes, and the parsers of a server, or of some of its routes. */
export function setBodyParsers(server: FastifyInstance, limit: number, parsers: BodyParsers): void {
  server.removeAllContentTypeParsers()
  server.addContentTypeParser('*', async (request: FastifyRequest, payload: Readable): Promise<unknown> => {
    if (request.is404) return undefined
    const bytes = await read(payload, Number(request.headers['content-length'] ?? 0), limit)
    if (bytes.length === 0) return {}
    const parse = chooseParser(request, parsers)
    try {
      request.bodyText = UTF8.decode(bytes)
      return parse(request.bodyText)
    } catch (error) {
      if (error instanceof RefusedBody) throw error
      throw new RefusedBody(refuse('bad_request', error instanceof SyntaxError ? `the body is malformed: ${error.message}` : 'the body is not UTF-8'))
    }
  })
}

function typeOf({ headers: { 'content-type': type = '' } }: FastifyRequest): MIMEType | undefined {
  try {
    return new MIMEType(type)
  } catch {
    return undefined
  }
}

function chooseParser(request: FastifyRequest, parsers: BodyParsers): (text: string) => unknown {
  const { 'content-encoding': encoding = 'identity' } = request.headers
  const type = typeOf(request)
  const charset = type?.params.get('charset') ?? 'utf-8'
  const parse = Object.entries(parsers).find(([essence]) => essence === type?.essence)?.[1]
  if (parse === undefined) throw refuseType(`the Content-Type of the body must be ${Object.keys(parsers).join(' or ')}`)
  if (!/^identity$/i.test(encoding)) throw refuseType(`the body must not be compressed; its Content-Encoding is ${encoding}`)
  if (!/^utf-?8$/i.test(charset)) throw refuseType(`the body must be UTF-8; the charset of its Content-Type is ${charset}`)
  return parse
}

function refuseType(fault: string): RefusedBody {
  return new RefusedBody(refuse('unsupported_media_type', fault))
}

/** `declared`: the Content-Length, 0 without one. */
async function read(payload: Readable, declared: number, limit: number): Promise<Buffer> {
  let bytes = declared > limit + DISCARD_MAX_BYTES ? declared : 0
  const chunks: Buffer[] = []
  try {
    if (bytes === 0) {
      for await (const chunk of payload.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
        bytes += chunk.length
        if (bytes <= limit) chunks.push(chunk)
        else chunks.length = 0
        if (bytes > limit + DISCARD_MAX_BYTES) break
      }
    }
  } catch {
    throw new RefusedBody(refuse('bad_request', 'the connection ended before the body did'))
  }
  if (bytes > limit) throw new RefusedBody(refuse('payload_too_large', `the body must be at most ${String(limit)} bytes`))
  return Buffer.concat(chunks)
}
