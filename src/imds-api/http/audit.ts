/**
 * The audit lines: a line of the log for each successful change, at level info. It says who changed what, with the names
 * of the parameters but never their values. Refused changes have no line.
 *
 * A line is written after the commit and before the response, so each response to a change has a line. After a kill in
 * between, the repeat of the request writes one, with `changed: false`.
 */
import type { FastifyReply, FastifyRequest, onSendHookHandler, preSerializationHookHandler } from 'fastify'

/** Writes a line. Undefined fields are left out. */
export type WriteAudit = (line: Readonly<Record<string, unknown>>) => void

/** Methods that change nothing. */
export const SAFE_METHODS: readonly string[] = ['GET', 'HEAD', 'OPTIONS']

/** Describes who sent a request: the first fields of the line. */
export type DescribeActor = (request: FastifyRequest) => Readonly<Record<string, string | undefined>>

/** Builds the hook that writes the lines: an `onSend` hook. */
export function buildAudit(write: WriteAudit, describeActor: DescribeActor): onSendHookHandler {
  return (request, reply, _payload, done) => {
    if (!SAFE_METHODS.includes(request.method) && reply.statusCode < 300)
      write({ ...describeActor(request), ...describeChange(request, reply) })
    done()
  }
}

/** Notes the id of the resource that is sent. */
export const noteRespondedId: preSerializationHookHandler = (_request, reply, payload, done) => {
  const { id, resource_type: type } = payload as { readonly id?: string; readonly resource_type?: string }
  if (type !== undefined) reply.respondedId = id
  done(null, payload)
}

function describeChange(
  { address, method, routeOptions, params, body, id }: FastifyRequest,
  { respondedId, changedNothing }: FastifyReply,
) {
  const known = Object.keys(
    (routeOptions.schema?.body as { readonly properties?: object } | undefined)?.properties ?? {},
  )
  const set = known.filter((name) => Object.hasOwn(body as object, name))
  return {
    address: address === '' ? undefined : address,
    method,
    route: routeOptions.url,
    id: (params as { readonly id?: string }).id ?? respondedId,
    set: set.length > 0 ? set : undefined,
    changed: changedNothing ? false : undefined,
    request_id: id,
  }
}
