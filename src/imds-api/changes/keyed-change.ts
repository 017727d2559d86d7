/**
 * A change with an Idempotency-Key, which is made at most once. The change and its response are committed together: a
 * repeat after the commit gets the recorded response, and a repeat after a rollback makes the change.
 *
 * A key belongs to its owner and to the client that sent it. The owner is the account of which the client is a member;
 * for a profile and the answer to an invitation, the user. A key is kept for 24 hours, or until newer keys of its
 * sender (a user or an API client) need the space. A 4xx refusal by the change itself is recorded too
 * (draft-ietf-httpapi-idempotency-key-header, 2.6), except 429, which asks the client to
 * repeat, and `forbidden`, since the right may be given later.
 */
import { sql } from 'kysely'
import { Replay, type KeyedRequest, type RecordedResponse } from '../http/idempotency.ts'
import { tryLock } from '../database/advisory-locks.ts'
import { deleteInBatches } from '../database/purge.ts'
import type { Db, Tx } from '../database/transaction.ts'
import { fieldFault, Refusal, refuse, statusOf, type Detail, type RefusalName } from '../model/refusal.ts'

/** A request with a key, and the client that sent it: the same user by another application is another client. */
export interface KeyOfClient extends KeyedRequest {
  readonly owner: string
  readonly client: string
}

const RETENTION = '24 hours'
/** The most keys of a sender in an account. */
export const MAX_IDEMPOTENCY_KEYS = 10_000
/** The bytes that a key costs its sender at least. A longer response costs its length. */
export const KEY_BYTES = 8_192
const MAX_BYTES = MAX_IDEMPOTENCY_KEYS * KEY_BYTES
const RETRY_SECONDS = 1

interface Row extends Omit<RecordedResponse, 'serverId'> {
  readonly is_same: boolean
  readonly refusal: RefusalName | null
  readonly user_data: string | null
}

export class KeyedChange {
  readonly #request: KeyOfClient

  constructor(request: KeyOfClient) {
    this.#request = request
  }

  get name(): string {
    const { owner, client, key } = this.#request
    return `${owner} ${client} ${key}`
  }

  /** Locks the key until the commit. Refuses (409) if another transaction has it, or a key with the same hash. */
  async lock(tx: Tx): Promise<void> {
    const { rows } = await sql<{ locked: boolean }>`select ${tryLock('idempotencyKey', this.name)} as locked`.execute(
      tx,
    )
    if (!rows[0]!.locked) throw inFlightRefusal()
  }

  /** Throws the recorded response, if there is one, or a refusal if it belongs to another request. */
  async replay(tx: Tx): Promise<void> {
    const { owner, client, key } = this.#request
    const { rows } = await sql<Row>`
      select digest = ${this.#digest()} as is_same, refusal, kept.status, body, link, omitted, servers.user_data
      from idempotency_keys as kept left join servers on servers.id = kept.server_id
      where owner = ${owner} and client = ${client} and key = ${key}`.execute(tx)
    const [row] = rows
    if (row === undefined) return
    if (!row.is_same) throw OTHER_REQUEST
    throw new Replay(
      row.refusal === null ? responseOf(row) : new Refusal(row.refusal, JSON.parse(row.body) as Detail[]),
    )
  }

  /** Makes the change and records the response. The result is for after the commit: it returns or throws. */
  async record<T>(tx: Tx, change: (tx: Tx) => Promise<T>): Promise<() => T> {
    await sql`savepoint change`.execute(tx)
    try {
      const result = await change(tx)
      await this.#insert(tx, { ...this.#request.respond(result), refusal: null })
      await sql`release savepoint change`.execute(tx) // so that the events find each other by the transaction
      return () => result
    } catch (error) {
      if (!isFinal(error)) throw error
      await sql`rollback to savepoint change`.execute(tx)
      const recorded = { status: statusOf(error.name), body: JSON.stringify(error.details), refusal: error.name }
      await this.#insert(tx, { ...recorded, link: null, omitted: [], serverId: null })
      return () => {
        throw error
      }
    }
  }

  /** Inserts the row, and deletes the sender's oldest rows beyond its limit. */
  async #insert(
    tx: Tx,
    recorded: ReturnType<KeyedRequest['respond']> & { readonly refusal: string | null },
  ): Promise<void> {
    const { owner, client, key } = this.#request
    const { status, body, link, omitted, serverId, refusal } = recorded
    const bytes = Math.max(KEY_BYTES, Buffer.byteLength(body))
    const ofSender = sql`owner = ${owner} and split_part(client, ' ', 1) = split_part(${client}, ' ', 1)`
    await sql`
      with inserted as (
        insert into idempotency_keys
          (owner, client, key, position, digest, refusal, status, body, link, omitted, server_id)
        values (${owner}, ${client}, ${key},
          (select coalesce(max(position), 0) from idempotency_keys where ${ofSender}) + ${bytes}::bigint,
          ${this.#digest()}, ${refusal}, ${status}, ${body}, ${link}, ${[...omitted]}::text[], ${serverId})
        on conflict (owner, client, key) do update set
          position = excluded.position, digest = excluded.digest, refusal = excluded.refusal, status = excluded.status,
          body = excluded.body, link = excluded.link, omitted = excluded.omitted, server_id = excluded.server_id,
          created_at = now()
        returning position
      )
      delete from idempotency_keys as old using inserted
      where ${ofSender} and old.position <= inserted.position - ${MAX_BYTES}::bigint
        and (old.client, old.key) <> (${client}, ${key})`.execute(tx)
  }

  #digest(): Buffer {
    return this.#request.hash.copy().digest()
  }
}

/** The refusal of a request whose key another request has that is not yet answered. */
export function inFlightRefusal(): Refusal {
  const text = 'the request with this Idempotency-Key has not ended yet: try again'
  return new Refusal('resource_conflict', [text], { retrySeconds: RETRY_SECONDS })
}

const OTHER_REQUEST = refuse(
  'unprocessable_entity',
  fieldFault(
    'Idempotency-Key',
    'not_allowed',
    'Idempotency-Key was sent before with another method, path or body: use a new key for each request',
  ),
)

/** True for a refusal that is recorded: a repeat would get it again. */
function isFinal(error: unknown): error is Refusal {
  if (!(error instanceof Refusal)) return false
  const { name } = error as Refusal
  return statusOf(name) < 500 && name !== 'too_many_requests' && name !== 'forbidden'
}

/** `user_data` is not recorded: it is the present value of the server, and null once the server is deleted. */
function responseOf({ status, body, link, omitted, user_data: userData }: Row): Replay['recorded'] {
  if (userData === null) return { status, body, link, omitted }
  const member = { ...(JSON.parse(body) as object), user_data: userData }
  return { status, body: JSON.stringify(member), link, omitted: omitted.filter((name) => name !== 'user_data') }
}

/**
 * Deletes expired keys. It runs once an hour and moves its limit by at most two hours, so a clock that is set a day
 * ahead by mistake does not end all keys.
 */
export async function purgeKeys(db: Db): Promise<void> {
  const { rows } = await sql<{ until: string }>`
    update region set keys_deleted_until = least(now() - ${RETENTION}::interval, keys_deleted_until + interval '2 hours')
    returning keys_deleted_until::text as until`.execute(db)
  await deleteInBatches(db, 'idempotency_keys', sql`created_at < ${rows[0]!.until}::timestamptz`)
}
