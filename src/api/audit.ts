/**
 * The audit lines: one JSON line on a stream of its own for each change that succeeded, with who changed what. A line has the names of the parameters that
 * the request set, and never their values. A refused change has no line, nor has a request that changed nothing (`reply.changedNothing`).
 */
import { closeSync, openSync } from 'node:fs'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { pino, type DestinationStream } from 'pino'
import type { Caller } from './auth/account-choice.ts'

/** Where the lines go. `reopen` opens the file again by its name, for a log rotation. It returns why it cannot: then lines go to the old file. */
export interface AuditStream extends DestinationStream { reopen(): Error | undefined }

const STANDARD_ERROR = 2
/** Methods that change nothing. */
export const READS: readonly string[] = ['GET', 'HEAD', 'OPTIONS']

/**
 * Opens standard error, or appends to a file. A line is written before the response is sent. One that cannot be written waits in memory, and `failed` is
 * called.
 */
export function openAudit(file: string | undefined, failed: (error: Error) => void): AuditStream {
  const stream = pino.destination({ dest: file ?? STANDARD_ERROR, sync: true, maxLength: 1 << 20 })
  stream.on('error', failed)
  return {
    write: (line) => { stream.write(line) },
    reopen: () => file === undefined ? undefined : reopen(stream, file),
  }
}

/**
 * Tries to open the file first, because after a failed `stream.reopen` the next one would close the old file twice. Reopens the stream instead of building a
 * new one, because it has the lines that wait.
 */
function reopen(stream: ReturnType<typeof pino.destination>, file: string): Error | undefined {
  try {
    closeSync(openSync(file, 'a'))
    stream.reopen()
    return undefined
  } catch (error) {
    return error as Error
  }
}

/** Describes who sent a request. The fields follow the time in the line; undefined ones are left out. */
export type DescribeActor = (request: FastifyRequest) => Readonly<Record<string, string | undefined>>

/** The actor of a route with an access token. Routes of the user's own side have no account. */
export const describeClient: DescribeActor = ({ identity, caller }) => ({
  client: identity.clientId,
  user: identity.kind === 'user' ? identity.userId : undefined,
  account: (caller as Caller | undefined)?.accountId,
})

/** Builds the hook that writes the lines: an `onSend` hook. */
export function buildAudit(
  destination: DestinationStream, describeActor: DescribeActor,
): (request: FastifyRequest, reply: FastifyReply, payload: unknown, done: () => void) => void {
  return (request, reply, _payload, done) => {
    if (!READS.includes(request.method) && reply.statusCode < 300 && !reply.changedNothing) {
      destination.write(`${JSON.stringify({ time: new Date().toISOString(), ...describeActor(request), ...describeChange(request, reply) })}\n`)
    }
    done()
  }
}

function describeChange({ ip, method, routeOptions, params, body }: FastifyRequest, { respondedId }: FastifyReply) {
  const known = Object.keys((routeOptions.schema?.body as { readonly properties?: object } | undefined)?.properties ?? {})
  const set = known.filter((name) => Object.hasOwn(body as object, name))
  return {
    address: ip, method, route: routeOptions.url,
    id: (params as { readonly id?: string }).id ?? respondedId,
    set: set.length > 0 ? set : undefined,
  }
}
