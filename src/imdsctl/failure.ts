/** Failed commands of imdsctl: their exit status and message. */
import { readFile } from 'node:fs/promises'
import { buffer } from 'node:stream/consumers'
import { ID_RULE, isId } from '../metadata/identifiers.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import { missingFile } from '../runtime/installation.ts'
import type { Output } from '../runtime/output.ts'
import type { PutRefusal } from '../store/publisher.ts'

export function checkId(id: string): void {
  if (!isId(id)) throw new CommandFailure(EXIT.usage, `"${String(id)}" is not ${ID_RULE}`)
}

/** Reads and parses a file, or standard input (`-`). Throws a Failure if it cannot be read or parsed. */
export async function readInput<T>(path: string, parse: (bytes: Buffer) => T): Promise<T> {
  try {
    return parse(await (path === '-' ? buffer(process.stdin) : readFile(path)))
  } catch (error) {
    throw new CommandFailure(EXIT.noInput, `${path} cannot be read: ${(error as Error).message}`)
  }
}

/** The Failure of a publish that is refused. `subject` begins the message; `details` are more fields for `--json`. */
export function refusalOf(subject: string, refused: PutRefusal, details: CommandFailure['details']): CommandFailure {
  const { kind: result, ...rest } = refused
  const fail = (status: number, message: string) =>
    new CommandFailure(status, `${subject}: ${message}`, { ...details, result, ...rest })
  switch (refused.kind) {
    case 'invalid': {
      const lines = refused.faults.map(({ path, message }) => `\n  ${path === '' ? '(the record)' : path} ${message}`)
      return fail(EXIT.badData, `is not a valid record:${lines.join('')}`)
    }
    case 'stale':
      return fail(
        EXIT.refused,
        `the store holds revision ${refused.revision} or removed the instance at it: publish a higher one`,
      )
    case 'incarnation':
      return fail(
        EXIT.refused,
        'the store has another instance with this id, or its tombstone: take another id, or remove that instance first',
      )
    case 'address-owned': {
      const { address, network, owner } = refused
      return fail(
        EXIT.refused,
        `${address} on network ${network} belongs to ${owner}, all or in part: remove it from that instance first`,
      )
    }
  }
}

/** The Failure for any error: an error that is no Failure means that the store or a daemon cannot be used. */
export function failureOf(error: unknown): CommandFailure {
  if (error instanceof CommandFailure) return error
  const path = missingFile(error)
  if (path !== undefined) {
    return new CommandFailure(
      EXIT.software,
      `cannot load ${path}, a file of this installation: if imds was just upgraded, run the command again; otherwise install imds again`,
    )
  }
  return new CommandFailure(EXIT.unavailable, error instanceof Error ? error.message : String(error))
}

/** Prints a Failure: as JSON on standard output, or its message on standard error. */
export function printFailure(output: Output, { message, details }: CommandFailure): void {
  if (output.json) output.printJson({ error: message, ...details })
  else output.warn(message)
}
