/**
 * The errors of the database: the responses that they become, and the lines of the log that they get.
 */
import { buildEachMinute } from '../../limits/each-minute.ts'
import type { Log, LogCode } from '../../runtime/log-codes.ts'
import { refuse, type Refusal } from '../model/refusal.ts'

/** A kind of error, by codes of PostgreSQL or the operating system. `isAway`: the condition of a database that is away. */
interface DatabaseTrouble {
  readonly codes: RegExp
  readonly refusal: Refusal
  readonly isAway?: true
  readonly logged?: { readonly code: LogCode; readonly message: string }
}

/**
 * The database is away: connection errors, PostgreSQL's classes 08 and 57 (it shuts down), 25006 (it has become a
 * standby), and 25P03 (it has ended a transaction of a process that was stopped).
 */
const AWAY: DatabaseTrouble = {
  codes: /^(ECONNREFUSED|ECONNRESET|EPIPE|ETIMEDOUT|EHOSTUNREACH|ENOTFOUND|08\w{3}|25006|25P03|57P0[123])$/,
  refusal: refuse('service_unavailable', 'the database is unreachable: try again'),
  isAway: true,
}
const AWAY_MESSAGE =
  /^Connection terminated|^Client has encountered a connection error|^timeout exceeded when trying to connect/
const TROUBLES: readonly DatabaseTrouble[] = [
  AWAY,
  {
    ...AWAY,
    codes: /^COMMIT_LOST$/,
    refusal: refuse(
      'service_unavailable',
      'the database became unreachable during the commit, so the change may have been made: ' +
        'look before you try again, or repeat the request with its Idempotency-Key',
    ),
  },
  {
    codes: /^22021$/, // text that it cannot store: in text from JSON or a path, only U+0000 causes it
    refusal: refuse('unprocessable_entity', 'text must not contain the character U+0000'),
  },
  {
    codes: /^(53\w{3}|58030)$/, // a full disk, too little memory or too many connections; an I/O error
    refusal: refuse('service_unavailable', 'the database has no room for this: try again'),
    logged: {
      code: 'database-full',
      message: 'the database has no disk space, memory or connections left: requests are answered 503',
    },
  },
  {
    codes: /^57014$/, // statement_timeout
    refusal: refuse('service_unavailable', 'the database takes too long for this: ask for less, or try again'),
    logged: {
      code: 'database-slow',
      message: 'the database has ended a statement that took too long: its request is answered 503',
    },
  },
  {
    codes: /^(40(001|P01)|55P03)$/, // a serialization failure, a deadlock or a lock: it has rolled everything back
    refusal: refuse(
      'service_unavailable',
      'the database has refused this because of other requests at the same time: try again',
    ),
    logged: {
      code: 'database-conflict',
      message: 'the database has refused a request because of others at the same time: it is answered 503',
    },
  },
]

/** Undefined: the error is not one of these, but a bug or of another part. */
export function findDatabaseTrouble({
  code = '',
  syscall,
  message,
}: Error & { readonly code?: string; readonly syscall?: string }): DatabaseTrouble | undefined {
  if (code === 'ENOENT') return syscall === 'connect' ? AWAY : undefined // its socket, or a file of the store
  return TROUBLES.find(({ codes }) => codes.test(code)) ?? (AWAY_MESSAGE.test(message) ? AWAY : undefined)
}

/** Logs what is wrong with the database: each event at most once a minute. */
export class DatabaseReport {
  readonly #log: Pick<Log, 'warn'>
  readonly #isDue = buildEachMinute(() => performance.now())

  constructor(log: Pick<Log, 'warn'>) {
    this.#log = log
  }

  /** False: the error is another one, and the caller has to report it. A condition has those of a database that is away. */
  report(error: Error, fields: Readonly<Record<string, unknown>> = {}): boolean {
    const { logged, isAway = false } = findDatabaseTrouble(error) ?? {}
    if (logged !== undefined) this.#warn(logged.code, { reason: error.message, ...fields }, logged.message)
    return isAway || logged !== undefined
  }

  /** An idle connection broke. */
  lost({ message }: Error): void {
    this.#warn('database-connection-lost', { reason: message }, 'connections to the database broke')
  }

  #warn(code: LogCode, fields: Readonly<Record<string, unknown>>, message: string): void {
    if (this.#isDue(code)) this.#log.warn({ code, ...fields }, message)
  }
}
