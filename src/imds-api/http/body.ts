/**
 * The body of a request: UTF-8 with or without a byte order mark, in a media type of the route. An empty body counts as
 * none, whatever its Content-Type (curl and Python send one). A body above the limit is read and discarded, within
 * bounds: many clients read the response only after they have sent the whole body.
 *
 * The cost of a body is bounded before it is parsed: its bytes, those of all bodies of its sender and of all senders
 * (body-budget.ts), and the levels and elements of its JSON.
 *
 * `__proto__` in a body is an own property. Bodies are never merged into other objects.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest, HookHandlerDoneFunction } from 'fastify'
import { MIMEType } from 'node:util'
import type { Readable } from 'node:stream'
import type { BodyBudget } from './body-budget.ts'
import { refuse, Refusal } from '../model/refusal.ts'

declare module 'fastify' {
  interface FastifyInstance {
    readonly bodyBudget: BodyBudget
  }
  interface FastifyRequest {
    /** The body in the BodyBudget. Undefined: the request has none. `release` returns its bytes. */
    heldBody: { readonly bytes: number; readonly release: () => void } | undefined
  }
}

/** The limit of a route without `bodyLimit`, in bytes. */
export const MAX_BODY_BYTES = 65_536
/**
 * The limit of servers, whose user_data is 16 KiB in base64 and whose tags may be escapes, and of the description of
 * images, in bytes.
 */
export const MAX_LONG_BODY_BYTES = 262_144

/** Ruby's parser, which the CLI uses, reads 100 levels. */
const MAX_LEVELS = 100
/** Of an array or object in a body: twice those of the longest array that a schema allows. */
const MAX_ELEMENTS = 2_000

/** How many bytes above the limit are read and discarded. Node's request timeout bounds the time. */
const MAX_DISCARD_BYTES = 8 * 2 ** 20
/** A refused body of which nothing arrives for so long is not awaited, in ms: the response ends the connection. */
const DISCARD_IDLE_MS = 1_000

/** Drops a byte order mark, and throws a TypeError if the bytes are not UTF-8. */
const UTF8 = new TextDecoder('utf-8', { fatal: true })

/** Parses the text of a body. It may throw a SyntaxError or a Refusal. */
export type BodyParser = (text: string) => unknown
export type BodyParsers = Readonly<Record<string, BodyParser>>

/** A parser of JSON of at most MAX_LEVELS levels, with at most `most` elements in an array or object; beyond, 422. */
export function jsonParser(most = MAX_ELEMENTS, parse: BodyParser = JSON.parse): BodyParser {
  return (text) => {
    const fault = boundsFault(text, most)
    if (fault !== undefined) throw refuse('unprocessable_entity', `the body must have at most ${fault}`)
    return parse(text)
  }
}

/** The bound that a text exceeds, which need not be JSON. Undefined: none. */
function boundsFault(text: string, most: number): string | undefined {
  const commas = new Uint32Array(MAX_LEVELS + 1) // of each object and array that is open
  let level = 0
  for (let at = 0; at < text.length; at++) {
    const character = text[at]
    if (character === '"') {
      while (++at < text.length && text[at] !== '"') if (text[at] === '\\') at++
    } else if (character === '{' || character === '[') {
      if (++level > MAX_LEVELS) return `${MAX_LEVELS} levels of objects and arrays`
      commas[level] = 0
    } else if (character === '}' || character === ']') level = Math.max(0, level - 1)
    else if (character === ',' && ++commas[level]! >= most) return `${most} elements in an array, or names in an object`
  }
  return undefined
}

export function addBodyParser(server: FastifyInstance, budget: BodyBudget): void {
  server.decorateRequest('heldBody', undefined)
  server.decorate('bodyBudget', budget)
  setBodyParsers(server, { 'application/json': jsonParser() })
}

/** Removes a Content-Type that cannot be read: Fastify would refuse it before it looks for a body. */
export function dropMalformedType(request: FastifyRequest, _reply: FastifyReply, done: HookHandlerDoneFunction): void {
  const { headers } = request
  if (headers['content-type'] !== undefined && typeOf(request) === undefined) delete headers['content-type']
  done()
}

/** Gives the handler of a request without a body an empty object. */
export function setMissingBody(request: FastifyRequest, _reply: FastifyReply, done: HookHandlerDoneFunction): void {
  request.body ??= {}
  done()
}

/** Returns the bytes of the body to the BodyBudget, also if the client has gone. */
export function releaseBody(request: FastifyRequest, _reply: FastifyReply, _payload: unknown, done: () => void): void {
  request.heldBody?.release()
  done()
}

/** Replaces the parsers of a server, or of some of its routes. */
export function setBodyParsers(server: FastifyInstance, parsers: BodyParsers): void {
  server.removeAllContentTypeParsers()
  server.addContentTypeParser('*', async (request: FastifyRequest, payload: Readable): Promise<unknown> => {
    if (request.is404) return undefined
    const { bodyBudget } = request.server
    const limit = request.routeOptions.bodyLimit
    const bytes = await read(request, payload, limit)
    request.keyed?.hash.update(bytes)
    if (bytes.length === 0) return {}
    const parse = chooseParser(request, parsers)
    const parsed =
      bytes.length <= MAX_BODY_BYTES
        ? parseBytes(bytes, parse)
        : await bodyBudget.inTurn(request.owner, () => parseBytes(bytes, parse))
    if (parsed === null) throw refuse('bad_request', 'the body must be a JSON object; it is null')
    return parsed
  })
}

function parseBytes(bytes: Buffer, parse: BodyParser): unknown {
  try {
    return parse(UTF8.decode(bytes))
  } catch (error) {
    if (error instanceof Refusal) throw error
    throw refuse(
      'bad_request',
      error instanceof SyntaxError ? `the body is malformed: ${error.message}` : 'the body is not UTF-8',
    )
  }
}

function typeOf({ headers: { 'content-type': type = '' } }: FastifyRequest): MIMEType | undefined {
  try {
    return new MIMEType(type)
  } catch {
    return undefined
  }
}

function chooseParser(request: FastifyRequest, parsers: BodyParsers): BodyParser {
  const { 'content-encoding': encoding = 'identity' } = request.headers
  const type = typeOf(request)
  const charset = type?.params.get('charset') ?? 'utf-8'
  const parse = Object.entries(parsers).find(([essence]) => essence === type?.essence)?.[1]
  const refuseType = (fault: string) => refuse('unsupported_media_type', fault)
  if (parse === undefined) throw refuseType(`the Content-Type of the body must be ${Object.keys(parsers).join(' or ')}`)
  if (!/^identity$/i.test(encoding))
    throw refuseType(`the body must not be compressed; its Content-Encoding is ${encoding}`)
  if (!/^utf-?8$/i.test(charset))
    throw refuseType(`the body must be UTF-8; the charset of its Content-Type is ${charset}`)
  return parse
}

/** Reads a body, and counts its bytes in the budget until the response is sent. */
async function read(request: FastifyRequest, payload: Readable, limit: number): Promise<Buffer> {
  const declared = Number(request.headers['content-length'] ?? 0)
  const { bodyBudget } = request.server
  const bytes = new Bytes()
  let refusal: Refusal | undefined = declared > limit + MAX_DISCARD_BYTES ? tooLong(limit) : undefined
  const { promise, resolve }: PromiseWithResolvers<'whole' | 'cut' | 'lost'> = Promise.withResolvers()
  const body = bodyBudget.begin(request.owner, (cut) => {
    refusal ??= cut
    bytes.clear()
    resolve('cut')
  })
  const release = () => {
    bodyBudget.release(body)
    bytes.clear()
  }
  request.heldBody = {
    get bytes() {
      return bytes.length
    },
    release,
  }
  let arrived = 0
  let idle: NodeJS.Timeout | undefined
  const add = (chunk: Buffer) => {
    arrived += chunk.length
    if (arrived > limit) refusal ??= tooLong(limit)
    refusal ??= bodyBudget.take(body, chunk.length, arrived > MAX_BODY_BYTES)
    if (refusal === undefined) bytes.add(chunk)
    else {
      release()
      clearTimeout(idle)
      idle = setTimeout(() => resolve('cut'), DISCARD_IDLE_MS)
    }
    if (arrived > limit + MAX_DISCARD_BYTES) resolve('cut')
  }
  if (refusal === undefined) {
    payload.on('data', add)
    payload.once('end', () => resolve('whole'))
    for (const event of ['error', 'close']) payload.once(event, () => resolve('lost'))
    const end = await promise
    clearTimeout(idle)
    payload.off('data', add)
    if (end === 'cut') payload.pause()
    if (end === 'lost') throw refuse('bad_request', 'the connection ended before the body did')
  }
  body.isWhole = true
  if (refusal !== undefined) throw refusal
  return bytes.bytes
}

function tooLong(limit: number): Refusal {
  return refuse('payload_too_large', `the body must be at most ${limit} bytes`)
}

/** Bytes in one buffer that grows: a body may arrive in chunks of one byte, and an object for each takes a hundred. */
class Bytes {
  #buffer = Buffer.alloc(0)
  length = 0

  get bytes(): Buffer {
    return this.#buffer.subarray(0, this.length)
  }

  add(chunk: Buffer): void {
    const length = this.length + chunk.length
    if (length > this.#buffer.length) {
      const longer = Buffer.allocUnsafeSlow(Math.max(length, 2 * this.#buffer.length))
      this.#buffer.copy(longer, 0, 0, this.length)
      this.#buffer = longer
    }
    chunk.copy(this.#buffer, this.length)
    this.length = length
  }

  clear(): void {
    this.#buffer = Buffer.alloc(0)
    this.length = 0
  }
}
