/**
 * The content of a path, ready to be sent. Its headers are made at its first request, because a guest asks for few of
 * its paths.
 */
import { hash } from 'node:crypto'

/**
 * `body`: text with one character per byte (latin1), or bytes. `headers` alternates names and values. `etag`: with its
 * quotes, as in the headers (contract H1); absent: there is none.
 */
export interface Content {
  readonly body: string | Uint8Array
  readonly headers: readonly string[]
  readonly etag?: string
}

/** Content with an ETag. `digest`: a digest of the body, if it is known already. */
export function buildContent(body: string | Uint8Array, type: string, digest?: string): Content {
  return new TaggedContent(body, type, digest)
}

/** A text as UTF-8. */
export function textContent(text: string, type = 'text/plain'): Content {
  return new TaggedContent(IS_ASCII.test(text) ? text : Buffer.from(text).toString('latin1'), type, undefined)
}

/** The bytes of such a text are its characters. */
const IS_ASCII = /^[\0-\x7f]*$/

/** How many characters of the digest an entity tag has: 132 bits. */
const TAG_LENGTH = 22

/** The strong entity tag of a body, with its quotes. */
export function entityTagOf(body: string | Uint8Array): string {
  return `"${hash('sha256', body, 'base64url').slice(0, TAG_LENGTH)}"`
}

class TaggedContent implements Content {
  readonly body: string | Uint8Array
  readonly #type: string
  #etag: string | undefined
  #headers: readonly string[] | undefined

  constructor(body: string | Uint8Array, type: string, digest: string | undefined) {
    this.body = body
    this.#type = type
    this.#etag = digest && `"${digest}"`
  }

  get etag(): string {
    const { body } = this
    return (this.#etag ??= entityTagOf(typeof body === 'string' ? Buffer.from(body, 'latin1') : body))
  }

  get headers(): readonly string[] {
    const { length } = this.body
    return (this.#headers ??= ['Content-Type', this.#type, 'Content-Length', String(length), 'ETag', this.etag])
  }
}
