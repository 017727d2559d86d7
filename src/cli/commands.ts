/**
 * What imdsctl's commands do. Each prints its result, or throws a Failure that says how the program ends; anything else that is
 * thrown means that the store could not be used.
 */
import { readFile } from 'node:fs/promises'
import { buffer } from 'node:stream/consumers'
import { parse as parseYaml } from 'yaml'
import { waitForInstance } from '../operator/wait.ts'
import { openStore, type Publisher, type StoreSettings, type UserDataChange } from '../store/open.ts'

/** Exit statuses: sysexits.h where it has one. */
export const EXIT = { done: 0, notFound: 1, refused: 2, usage: 64, badData: 65, noInput: 66, unavailable: 69, system: 71, timeout: 75 } as const

/** What every command is given. */
export interface Context { readonly store: StoreSettings, readonly json: boolean }

/** An end other than success: its exit status, what a person reads, and what `--json` adds. */
export class Failure extends Error {
  readonly status: number
  readonly details: Readonly<Record<string, unknown>>

  constructor(status: number, message: string, details: Readonly<Record<string, unknown>> = {}) {
    super(message)
    this.status = status
    this.details = details
  }
}

/** Publishes `record` (a path, or `-`). `userDataPath`: undefined keeps the user-data, false drops it, a path or `-` replaces it. */
export async function put({ store, json }: Context, record: string, userDataPath: string | false | undefined): Promise<void> {
  if (record === '-' && userDataPath === '-') throw new Failure(EXIT.usage, 'the record and the user-data cannot both come from standard input')
  const document = parseDocument(record, await read(record))
  const userData: UserDataChange = userDataPath === undefined ? 'keep' : userDataPath === false ? 'none' : await read(userDataPath)
  await withStore(store, async (publisher) => {
    const put = await publisher.put(document, userData)
    switch (put.result) {
      case 'published':
      case 'unchanged': {
        const { id, revision } = put.instance
        print(json, { result: put.result, id, revision }, `${put.result} ${id} revision ${String(revision)}`); return
      }
      case 'invalid': {
        const faults = put.faults.map(({ path, message }) => `  ${path === '' ? '(the record)' : path} ${message}`)
        throw new Failure(EXIT.badData, `${record} is not a good record:\n${faults.join('\n')}`, put)
      }
      case 'stale':
        throw new Failure(EXIT.refused, `the store holds revision ${String(put.revision)} or removed the instance at it: publish a higher one`, put)
      case 'address-owned':
        throw new Failure(EXIT.refused, `${put.address} on network ${put.network} belongs to ${put.owner}, all or in part: take it from there first`, put)
    }
  })
}

/** Prints the record of an instance. */
export async function get({ store }: Context, id: string): Promise<void> {
  await withStore(store, async (publisher) => {
    console.log(JSON.stringify((await existing(publisher, id)).document, null, 2))
  })
}

/** Prints the bytes of an instance's user-data. */
export async function userData({ store, json }: Context, id: string): Promise<void> {
  await withStore(store, async (publisher) => {
    const { userData: bytes } = await existing(publisher, id)
    if (json) console.log(JSON.stringify({ id, userDataBase64: bytes === null ? null : Buffer.from(bytes).toString('base64') }))
    else if (bytes !== null) process.stdout.write(bytes)
  })
}

/** Removes an instance. */
export async function remove({ store, json }: Context, id: string, revision: number | undefined): Promise<void> {
  checkId(id)
  await withStore(store, async (publisher) => {
    const removed = await publisher.remove(id, revision)
    if (removed.result === 'stale') {
      throw new Failure(EXIT.refused, `the store holds revision ${String(removed.revision)}: remove at that one or a higher one`, removed)
    }
    const text = removed.result === 'removed'
      ? `removed ${id} at revision ${String(removed.revision)}`
      : `the store held no ${id}; its tombstone at revision ${String(removed.revision)} tells hosts that still do`
    print(json, { id, ...removed }, text)
  })
}

/** Waits until the daemon at `operator` answers for a revision of an instance. */
export async function wait(json: boolean | undefined, id: string, options: { revision: number, timeout: number, operator: string }): Promise<void> {
  const { revision, timeout, operator } = options
  checkId(id)
  const waited = await waitForInstance({ operator: `http://${operator}`, id, revision, timeoutMs: timeout * 1000 })
  if (waited.result === 'timeout') {
    throw new Failure(EXIT.timeout, `the daemon does not answer for revision ${String(revision)} of ${id}: ${waited.reason}`, { id, ...waited })
  }
  print(json === true, { id, revision: waited.revision }, `${id} is answered for at revision ${String(waited.revision)}`)
}

/** Prints every instance of the store, a line each. */
export async function list({ store, json }: Context): Promise<void> {
  await withStore(store, async (publisher) => {
    const all = await publisher.list()
    if (json) console.log(JSON.stringify(all))
    else for (const { id, revision, hypervisors, addresses } of all) console.log([id, String(revision), hypervisors.join(','), addresses.join(', ')].join('\t'))
  })
}

/** Prints the id and the revision of whatever changes (revision null: removed), until SIGINT or SIGTERM. */
export async function watch({ store, json }: Context): Promise<void> {
  await withStore(store, async (publisher) => {
    const stop = await publisher.watch((id) => {
      publisher.get(id).then((published) => {
        const revision = (published?.document as { revision?: number } | undefined)?.revision ?? null
        print(json, { id, revision }, revision === null ? `${id}\tremoved` : `${id}\t${String(revision)}`)
      }, (error: unknown) => { console.error(`imdsctl: ${id}: ${String(error)}`) })
    })
    await new Promise((resolve) => {
      process.once('SIGINT', resolve)
      process.once('SIGTERM', resolve)
    })
    await stop()
  })
}

async function withStore(settings: StoreSettings, use: (publisher: Publisher) => Promise<void>): Promise<void> {
  const publisher = await openStore(settings)
  try {
    await use(publisher)
  } finally {
    await publisher.close()
  }
}

async function existing(publisher: Publisher, id: string): Promise<{ document: unknown, userData: Uint8Array | null }> {
  checkId(id)
  const published = await publisher.get(id)
  if (published === undefined) throw new Failure(EXIT.notFound, `the store has no ${id}`, { id })
  return published
}

function checkId(id: string): void {
  if (!/^srv-[0-9a-z]{1,32}$/.test(id)) throw new Failure(EXIT.usage, `"${id}" is not an id such as srv-x1y2z`)
}

async function read(path: string): Promise<Buffer> {
  try {
    return path === '-' ? await buffer(process.stdin) : await readFile(path)
  } catch (error) {
    throw new Failure(EXIT.noInput, `cannot read ${path}: ${(error as Error).message}`)
  }
}

/** JSON or YAML: every JSON document is YAML too, but JSON's own reader says better what is wrong with one. */
function parseDocument(path: string, bytes: Buffer): unknown {
  const text = bytes.toString('utf8')
  try {
    return /^\s*\{/.test(text) ? JSON.parse(text) as unknown : parseYaml(text) as unknown
  } catch (error) {
    throw new Failure(EXIT.badData, `${path} is neither JSON nor YAML: ${(error as Error).message.split('\n', 1)[0] ?? ''}`)
  }
}

function print(json: boolean, data: unknown, text: string): void {
  console.log(json ? JSON.stringify(data) : text)
}
