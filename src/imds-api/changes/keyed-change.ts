/**
 * A change with an Idempotency-Key, which is made at most once. The change and its response are committed together: a
 * repeat after the commit gets the recorded response, and a repeat after a rollback makes the change.
 *
 * A key belongs to its owner and to the client that sent it. The owner is the account of which the client is a member;
 * for a profile and the answer to an invitation, the user. A key is kept for 24 hours, or until newer keys of its owner
 * need the space: then the oldest of the sender (a user or an API client) with the most goes. A 4xx refusal by the change itself is recorded too
 * (draft-ietf-httpapi-idempotency-key-header, 2.6), except 429, which asks the client to repeat, and 403.
 */
import { sql, type RawBuilder } from 'kysely'
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
/** The most keys of an owner. */
export const MAX_IDEMPOTENCY_KEYS = 10_000
/** The bytes that a key costs at least, and the longest response that is recorded as a whole. */
export const KEY_BYTES = 8_192
const ROOM_BYTES = MAX_IDEMPOTENCY_KEYS * KEY_BYTES
const RETRY_SECONDS = 1

interface Row extends Omit<RecordedResponse, 'sourceId'> {
  readonly is_same: boolean
  readonly refusal: RefusalName | null
  readonly user_data: string | null
  readonly data: string | null
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
      select digest = ${this.#digest()} as is_same, refusal, kept.status, body, link, omitted, servers.user_data,
        config_maps.data::text as data
      from idempotency_keys as kept left join servers on servers.id = kept.server_id
        left join config_maps on config_maps.id = kept.server_id
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
      await this.#insert(tx, { ...shortened(this.#request.respond(result)), refusal: null })
      await sql`release savepoint change`.execute(tx) // so that the events find each other by the transaction
      return () => result
    } catch (error) {
      if (!isFinal(error)) throw error
      await sql`rollback to savepoint change`.execute(tx)
      const recorded = { status: statusOf(error.name), body: JSON.stringify(error.details), refusal: error.name }
      await this.#insert(tx, { ...recorded, link: null, omitted: [], sourceId: null })
      return () => {
        throw error
      }
    }
  }

  /** Inserts the row, and deletes rows of the owner that exceed its limit. */
  async #insert(
    tx: Tx,
    recorded: ReturnType<KeyedRequest['respond']> & { readonly refusal: string | null },
  ): Promise<void> {
    const { owner, client, key } = this.#request
    const { status, body, link, omitted, sourceId, refusal } = recorded
    const bytes = Math.max(KEY_BYTES, Buffer.byteLength(body))
    const sender = sql`split_part(client, ' ', 1)`
    const ofSender = (name: RawBuilder<unknown>) => sql`idempotency_keys where owner = ${owner} and ${sender} = ${name}`
    await sql`
      with recursive inserted as (
        insert into idempotency_keys
          (owner, client, key, position, digest, refusal, status, body, link, omitted, server_id)
        values (${owner}, ${client}, ${key},
          (select coalesce(max(position), 0) from ${ofSender(sql`split_part(${client}, ' ', 1)`)}) + ${bytes}::bigint,
          ${this.#digest()}, ${refusal}, ${status}, ${body}, ${link}, ${[...omitted]}::text[], ${sourceId})
        on conflict (owner, client, key) do update set
          position = excluded.position, digest = excluded.digest, refusal = excluded.refusal, status = excluded.status,
          body = excluded.body, link = excluded.link, omitted = excluded.omitted, server_id = excluded.server_id,
          created_at = now()
      ), senders as ( -- one look into the index for each
        select (select min(${sender}) from idempotency_keys where owner = ${owner}) as name
        union all
        select (select min(${sender}) from idempotency_keys where owner = ${owner} and ${sender} > name)
        from senders where name is not null
      ), used as (
        select name, oldest, newest - oldest + ${KEY_BYTES} as bytes
        from senders cross join lateral (
          select min(position) as oldest, max(position) as newest from ${ofSender(sql`name`)}) as positions
        where name is not null
      ), excess as (select sum(bytes) + ${bytes}::bigint - ${ROOM_BYTES}::bigint as bytes from used)
      delete from idempotency_keys using excess, (select * from used order by bytes desc limit 1) as largest
      where owner = ${owner} and ${sender} = largest.name and position < largest.oldest + excess.bytes
        and (client, key) <> (${client}, ${key})`.execute(tx)
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

/** Empties the longest fields of a response that is too long. */
function shortened({ body, omitted, ...rest }: RecordedResponse): RecordedResponse {
  const tooLong = Buffer.byteLength(body) - KEY_BYTES
  if (tooLong <= 0) return { body, omitted, ...rest }
  const member = JSON.parse(body) as Readonly<Record<string, unknown>>
  const fields = Object.keys(member).map((name) => ({ name, bytes: Buffer.byteLength(JSON.stringify(member[name])) }))
  fields.sort((one, other) => other.bytes - one.bytes)
  const left: string[] = []
  for (let bytes = 0; bytes < tooLong; bytes += fields[left.length - 1]!.bytes) left.push(fields[left.length]!.name)
  const shown = { ...member, ...Object.fromEntries(left.map((name) => [name, emptied(member[name])])) }
  return { body: JSON.stringify(shown), omitted: [...omitted, ...left], ...rest }
}

function emptied(value: unknown): unknown {
  return Array.isArray(value) ? [] : typeof value === 'string' ? '' : {}
}

/** With the present values of omitted fields that a row has. Once it is deleted, the fields stay empty. */
function responseOf({ status, body, link, omitted, user_data: userData, data }: Row): Replay['recorded'] {
  const fields = [
    { name: 'user_data', text: userData === null ? null : JSON.stringify(userData) },
    { name: 'data', text: data }, // not parsed: it keeps its numbers
  ]
  const filled = fields.filter(({ name, text }) => text !== null && omitted.includes(name))
  return {
    ...{ status, link },
    body: filled.reduce((all, { name, text }) => all.replace(EMPTY.get(name)!, () => `"${name}":${text!}`), body),
    omitted: omitted.filter((one) => !filled.some(({ name }) => name === one)),
  }
}

/** Fields as they are recorded. In a text, JSON would escape their quotes. */
const EMPTY = new Map([
  ['user_data', /"user_data":(?:null|"")/],
  ['data', /"data":\{\}/],
])

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
