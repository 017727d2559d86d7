/**
 * `If-Match` on changes of a member and on its actions: they are refused (412) if the member is not as its GET has
 * shown it. The member is read in the transaction of the change, and its row stays locked until the commit.
 */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { sql } from 'kysely'
import type { TObject } from 'typebox'
import { entityTagOf } from '../../../metadata/content.ts'
import { namesStrongly, namesWeakly } from '../../../runtime/http.ts'
import type { Db, Tx } from '../../database/transaction.ts'
import { memberPathOf } from '../../http/entity-tags.ts'
import { Refusal } from '../../model/refusal.ts'
import type { Representation } from './forms.ts'
import { idOf } from './lists.ts'
import type { Resource } from './table.ts'

/** Members that changes may depend on. `schema`: of their GET. */
interface Tagged {
  readonly resource: Pick<Resource, 'table'>
  readonly schema: TObject
  readonly load: (db: Db, request: FastifyRequest, id: string) => Promise<Representation>
}

/** Builds what refuses a change of a member if its present tag is not among those of `If-Match`, and locks its row. */
export function conditionOf(
  { resource: { table }, schema, load }: Tagged,
  request: FastifyRequest,
  reply: FastifyReply,
): (tx: Tx) => Promise<void> {
  return async (tx) => {
    const given = request.headers['if-match']
    if (given === undefined || memberPathOf(request.routeOptions.url!) === undefined) return
    const named = idOf(request)
    const { id } = await load(tx, request, named)
    await sql`select 1 from ${sql.table(table)} where id = ${id} for no key update`.execute(tx)
    const text = reply.serializeInput(await load(tx, request, named), schema as never)
    const tag = entityTagOf(text)
    if (!namesStrongly(given, tag)) throw new Refusal('precondition_failed', [mismatchOf(id, given, tag)], { tag })
  }
}

/** Why `If-Match` does not name the present tag of a member. */
function mismatchOf(id: string, given: string, tag: string): string {
  if (namesWeakly(given, tag))
    return `If-Match must have the strong tag ${tag}: a proxy that compresses responses has put W/ before it`
  if (!given.includes('"')) return `If-Match must have the ETag in its double quotes, such as ${tag}`
  return `${id} has changed: read it again, and use its present ETag`
}
