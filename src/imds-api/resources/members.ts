/** The GET of a member. conditions.ts reads a member in the same way before a change of it. */
import type { FastifyRequest } from 'fastify'
import type { Static, TObject, TSchema } from 'typebox'
import type { Reader } from '../database/transaction.ts'
import type { ApiServer } from '../http/server.ts'
import type { Member } from './conditions.ts'
import type { idParams } from './nested.ts'

/** A member in its full form. `params`: none if the path names the member. `load`: refuses if it does not exist. */
export interface MemberRoute<Form extends TObject> extends Pick<Member, 'table'> {
  readonly path: string
  readonly operationId: string
  readonly summary: string
  readonly description: string
  readonly tags: readonly string[]
  readonly params?: ReturnType<typeof idParams>
  readonly form: Form
  readonly load: (database: Reader, request: FastifyRequest, id: string) => Promise<Static<Form>>
}

/** Adds the route. */
export function addMember<Form extends TObject>(
  server: ApiServer,
  db: Reader,
  { path, table, form, load, ...schema }: MemberRoute<Form>,
): void {
  const response: { readonly 200: TSchema } = { 200: form }
  server.get(
    path,
    {
      schema: { ...schema, response },
      config: { member: { table, load: load as Member['load'] } },
    },
    async (request) => load(db, request, (request.params as { readonly id?: string }).id ?? ''),
  )
}
