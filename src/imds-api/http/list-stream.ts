/**
 * Sends a list that is loaded in parts. A short list, or a page, is one body with a length. A longer list is streamed:
 * each part is loaded when the client has read the parts before it. A slow client holds no connection to the database
 * and no turn in its share, and at most one part in memory (connections.ts bounds unread bytes).
 *
 * Each part is a query, so a streamed list is no snapshot. It has every resource that existed all the time, once.
 */
import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { ListQuery, ListPosition } from './paging.ts'

/** Some rows of a list: their JSON, joined by commas. `next`: the position of the last one, if more follow. */
export interface ListPart {
  readonly json: string
  readonly rows: number
  readonly next: ListPosition | undefined
}
/** Loads rows after a position, at most `rows`, until they have `bytes`. Undefined: the first ones. */
export type LoadPart = (after: ListPosition | undefined, rows: number, bytes: number) => Promise<ListPart>

/** A list of more bytes is streamed, in parts that end at more, as a page does. */
const MAX_BYTES_AT_ONCE = 2 << 20

/** Sends the list, or one page of it if the query has a limit. `rowsAtOnce`: the most rows of a part. */
export async function sendList(
  reply: FastifyReply,
  { limit, after, linkTo }: Pick<ListQuery, 'limit' | 'after' | 'linkTo'>,
  rowsAtOnce: number,
  load: LoadPart,
): Promise<FastifyReply> {
  const parts: ListPart[] = []
  let [next, left, bytes] = [after, limit ?? Infinity, 0]
  do {
    const part = await load(next, Math.min(rowsAtOnce, left), MAX_BYTES_AT_ONCE - bytes)
    parts.push(part)
    next = part.next
    left -= part.rows
    bytes += Buffer.byteLength(part.json)
  } while (next !== undefined && left > 0 && bytes < MAX_BYTES_AT_ONCE)
  void reply.type('application/json; charset=utf-8')
  const filled = parts.filter((part) => part.json !== '') // a part may have no rows
  const json = filled.map((part) => part.json).join(',')
  if (next === undefined) return reply.send(`[${json}]`)
  if (limit !== undefined) return reply.header('Link', linkTo(next)).send(`[${json}]`)
  const isHead = reply.request.method === 'HEAD'
  const rest = pieces(reply.request, json, next, (position) => load(position, rowsAtOnce, MAX_BYTES_AT_ONCE))
  return reply.send(
    isHead
      ? Readable.from([])
      : streamOf(rest, (error) => {
          reply.cutOff(error)
        }),
  )
}

async function* pieces(
  request: FastifyRequest,
  begin: string,
  first: ListPosition,
  load: (after: ListPosition) => Promise<ListPart>,
): AsyncGenerator<string> {
  yield `[${begin}`
  let isEmpty = begin === ''
  for (let next: ListPosition | undefined = first; next !== undefined;) {
    await request.accounts.check()
    const leave = await request.share.again()
    const part: ListPart = await load(next).finally(leave)
    if (part.json !== '') yield isEmpty ? part.json : `,${part.json}`
    isEmpty &&= part.json === ''
    next = part.next
  }
  yield ']'
}

/** Makes each piece when those before it are passed on. (`Readable.from` makes one more.) */
function streamOf(made: AsyncGenerator<string>, onError: (error: unknown) => void): Readable {
  return new Readable({
    objectMode: true,
    highWaterMark: 0,
    read() {
      made.next().then(
        ({ value, done }) => this.push(done === true ? null : value),
        (error: unknown) => {
          if (!this.destroyed) onError(error)
          this.destroy(error as Error)
        },
      )
    },
  })
}
