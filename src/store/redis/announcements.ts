/**
 * Announcements: each daemon writes its version and how many instances it serves into a key for its hypervisor, when it
 * connects and every 30 s. Publishers read them to warn of misspelt hypervisors, and to list all hypervisors.
 *
 * A hypervisor's Redis user may write only its own key, and a reader reads only the first bytes of it. So it can
 * neither announce for others, nor make a publisher read much.
 *
 * Earlier daemons write into a hash for all hypervisors, which is read too as long as regions may have such daemons: up
 * to version 0.2.
 */
import type { Redis } from 'ioredis'
import { isName } from '../../metadata/identifiers.ts'
import type { AnnouncedHypervisor } from '../publisher.ts'
import { runPipeline, isDenied } from './connection.ts'
import type { Keys } from './keys.ts'

/** How much of an announcement is read. */
const MAX_BYTES = 1024
/** How many keys are looked at, or read, at a time. */
const BATCH = 1000
/** The most memory of the hash of earlier daemons: some thousand hypervisors. A larger one is not read. */
const EARLIER_MAX_BYTES = 1024 * 1024

/** Returns the names among `names` that no daemon has announced. Reads no value. A user who may not ask gets none. */
export async function unannouncedOf(redis: Redis, keys: Keys, names: readonly string[]): Promise<readonly string[]> {
  const replies = await runPipeline(
    redis,
    names.flatMap((name) => [
      ['exists', keys.announcement(name)],
      ['hstrlen', keys.hypervisors, name],
    ]),
  )
  const failure = replies.find((reply) => reply instanceof Error && !isDenied(reply))
  if (failure !== undefined) throw failure as Error
  return names.filter((_name, i) => replies[2 * i] === 0 && replies[2 * i + 1] === 0)
}

/** Lists every announced hypervisor, by name. Rejects if the user may not. */
export async function announcedHypervisors(redis: Redis, keys: Keys): Promise<AnnouncedHypervisor[]> {
  const found = new Map(await earlier(redis, keys))
  const prefix = keys.announcement('')
  for await (const page of redis.scanStream({ match: `${prefix}*`, count: BATCH })) {
    const names = (page as string[]).map((key) => key.slice(prefix.length)).filter(isName)
    const texts = await runPipeline(
      redis,
      names.map((name) => ['getrange', keys.announcement(name), 0, MAX_BYTES - 1]),
    )
    // empty: it has expired
    for (const [i, name] of names.entries()) if (texts[i] !== '') found.set(name, parseAnnouncement(name, texts[i]))
  }
  return [...found.values()].sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** What earlier daemons have announced. Empty if that is too much to read, or if the user may not ask. */
async function earlier(redis: Redis, keys: Keys): Promise<[string, AnnouncedHypervisor][]> {
  const [bytes] = await runPipeline(redis, [['memory', 'usage', keys.hypervisors, 'samples', 0]])
  if (typeof bytes !== 'number' || bytes > EARLIER_MAX_BYTES) return []
  return Object.entries(await redis.hgetall(keys.hypervisors))
    .filter(([name]) => isName(name))
    .map(([name, text]) => [name, parseAnnouncement(name, text)])
}

/** Reads an announcement. Daemons write these, so any shape is possible. */
function parseAnnouncement(name: string, text: unknown): AnnouncedHypervisor {
  let state: Partial<Record<string, unknown>> = {}
  try {
    state = JSON.parse(String(text)) as typeof state
  } catch {
    /* reported with empty fields */
  }
  const { version, instances, seenAt } = state
  return {
    name,
    version: typeof version === 'string' ? version : '',
    instances: typeof instances === 'number' ? instances : 0,
    seenAt: typeof seenAt === 'string' ? seenAt : '',
  }
}
