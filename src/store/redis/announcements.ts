/**
 * Announcements: each daemon writes its version, how many instances it serves and how far it is behind the store into a
 * key for its hypervisor, when it connects, after each resync and every 30 s. Publishers read them to warn of misspelt
 * hypervisors, and to list all hypervisors.
 *
 * A hypervisor's Redis user may write only its own key, and a reader reads only the first bytes of it. So it can
 * neither announce for others, nor make a publisher read much.
 */
import type { Redis } from 'ioredis'
import { isName } from '../../metadata/identifiers.ts'
import { parseFields, type AnnouncedHypervisor } from '../fleet.ts'
import { runPipeline, valueOf } from './connection.ts'
import type { Keys } from './keys.ts'

export const MAX_ANNOUNCEMENT_BYTES = 1024
/** How many keys are looked at, or read, at a time. */
const MAX_BATCH_KEYS = 1000

/** Returns the names among `names` that no daemon has announced. Reads no value. */
export async function unannouncedOf(redis: Redis, keys: Keys, names: readonly string[]): Promise<readonly string[]> {
  const replies = await runPipeline(
    redis,
    names.map((name) => ['exists', keys.announcement(name)]),
  )
  return names.filter((_name, i) => valueOf(replies[i]) === 0)
}

/** Lists every announced hypervisor, by name. Rejects if the user may not. */
export async function announcedHypervisors(redis: Redis, keys: Keys): Promise<AnnouncedHypervisor[]> {
  const found = new Map<string, AnnouncedHypervisor>() // a scan may return a key twice
  const prefix = keys.announcement('')
  for await (const page of redis.scanStream({ match: `${prefix}*`, count: MAX_BATCH_KEYS })) {
    const names = (page as string[]).map((key) => key.slice(prefix.length)).filter(isName)
    for (const announcement of await announcementsOf(redis, keys, names)) found.set(announcement.name, announcement)
  }
  return [...found.values()].sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** Reads the announcements of these hypervisors, if they have one. A key of a wrong type is one with empty fields. */
export async function announcementsOf(
  redis: Redis,
  keys: Keys,
  names: readonly string[],
): Promise<AnnouncedHypervisor[]> {
  const texts = await runPipeline(
    redis,
    names.map((name) => ['getrange', keys.announcement(name), 0, MAX_ANNOUNCEMENT_BYTES - 1]),
  )
  for (const text of texts) if (text instanceof Error && !text.message.startsWith('WRONGTYPE ')) throw text
  return names.flatMap((name, i) => (texts[i] === '' ? [] : [parseAnnouncement(name, texts[i])]))
}

function parseAnnouncement(name: string, text: unknown): AnnouncedHypervisor {
  const { version, instances, lagSeconds, seenAt, duplicate, recordKeys } = parseFields(String(text))
  return {
    name,
    version: typeof version === 'string' ? version : '',
    instances: typeof instances === 'number' ? instances : 0,
    ...(typeof lagSeconds === 'number' && { lagSeconds }),
    seenAt: typeof seenAt === 'string' ? seenAt : '',
    ...(duplicate === true && { duplicate }),
    ...(Array.isArray(recordKeys) && { recordKeys: recordKeys.filter((key) => typeof key === 'string') }),
  }
}
