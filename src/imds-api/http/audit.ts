/**
 * The audit lines: a JSON line for each successful change, on a stream of its own. It says who changed what, with the
 * names of the parameters but never their values. Refused changes have no line.
 *
 * A line is written after the commit and before the response, so each response to a change has a line. After a kill in
 * between, the repeat of the request writes one, with `changed: false`.
 */
import { closeSync, openSync } from 'node:fs'
import type { FastifyReply, FastifyRequest, onSendHookHandler, preSerializationHookHandler } from 'fastify'
import { pino, type DestinationStream } from 'pino'
import { buildLogOutput, neverBlock, type LogOutput } from '../../runtime/log-output.ts'

/**
 * Where the lines go. `reopen` opens the file again by its name after a log rotation. If it fails, it returns the
 * error, and lines still go to the old file.
 */
export interface AuditStream extends DestinationStream {
  reopen(): Error | undefined
}

const STANDARD_ERROR = 2
/** The most bytes of lines that wait for the reader of standard error: about 30,000 lines. */
const MAX_WAITING_BYTES = 8 << 20
/** Of a new audit file: it has the names of users and the addresses of clients. */
const MODE = 0o600
/** Methods that change nothing. */
export const SAFE_METHODS: readonly string[] = ['GET', 'HEAD', 'OPTIONS']

/**
 * Opens a file to append to, or standard error, which is flushed at exit. A line is written before the response is
 * sent. `onError` is called for a line that cannot be written: one for a file waits in memory, one for standard error
 * is lost.
 */
export function openAudit(file: string | undefined, onError: (error: Error) => void): AuditStream {
  if (file !== undefined) return auditToFile(file, onError)
  neverBlock(STANDARD_ERROR, () => process.stderr)
  const output = auditTo(STANDARD_ERROR, onError)
  process.on('exit', () => output.flushSync())
  return {
    write: (line) => output.write(line),
    reopen: () => undefined,
  }
}

/**
 * Writes audit lines to a non-blocking file descriptor. Up to 8 MiB wait for a slow reader; further lines are dropped
 * and counted.
 */
export function auditTo(fd: number, onError: (error: Error) => void): LogOutput {
  return buildLogOutput(
    fd,
    (lines) => {
      const line = {
        level: 'error',
        time: new Date().toISOString(),
        lines,
        msg: 'audit lines were lost, because the reader of standard error did not keep up',
      }
      return `${JSON.stringify(line)}\n`
    },
    MAX_WAITING_BYTES,
    onError,
  )
}

function auditToFile(file: string, onError: (error: Error) => void): AuditStream {
  const stream = pino.destination({ dest: file, sync: true, maxLength: 1 << 20, mode: MODE })
  stream.on('error', onError)
  return {
    write: (line) => stream.write(line),
    reopen: () => {
      try {
        closeSync(openSync(file, 'a', MODE)) // after a failed `reopen` SonicBoom would close the old file twice
        stream.reopen() // not a new stream: this one has the lines that wait
        return undefined
      } catch (error) {
        return error as Error
      }
    },
  }
}

/** Describes who sent a request. The fields follow the time in the line; undefined ones are left out. */
export type DescribeActor = (request: FastifyRequest) => Readonly<Record<string, string | undefined>>

/** Builds the hook that writes the lines: an `onSend` hook. */
export function buildAudit(destination: DestinationStream, describeActor: DescribeActor): onSendHookHandler {
  return (request, reply, _payload, done) => {
    if (!SAFE_METHODS.includes(request.method) && reply.statusCode < 300) {
      const time = new Date().toISOString()
      const line = { time, ...describeActor(request), ...describeChange(request, reply) }
      destination.write(`${JSON.stringify(line)}\n`)
    }
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
