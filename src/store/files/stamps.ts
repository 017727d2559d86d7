/**
 * Stamps of the files of a directory: texts that change when the files do. Comparing them costs a fraction of reading
 * the files.
 */
import { readdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { idOfFile, isMisnamed } from './load.ts'
import { ifThere, stampOf } from '../../runtime/regular-file.ts'

/** Files that are looked up at the same time. */
export const MAX_CONCURRENT_LOOKUPS = 128
/**
 * A file that changed so recently may change again within the same tick of its file system's clock, and keep its stamp.
 * Two seconds is the longest such tick.
 */
const MAX_TICK_MS = 2_000

/**
 * The stamps of an instance's files. `isRecent`: one changed less than MAX_TICK_MS ago, so that a later change may not
 * show. `changedAtMs`: when the content of one was changed last (Unix time), by the programs that wrote it.
 */
export interface Stamps {
  readonly text: string
  readonly isRecent: boolean
  readonly changedAtMs: number
}

/**
 * Lists the instances of a directory: id -> the endings of its files, in their order. Calls `onMisnamed` for each file
 * that belongs to none and seems to be meant for one.
 */
export async function listFiles(
  directory: string,
  onMisnamed: (name: string) => void = () => undefined,
): Promise<Map<string, string[]>> {
  const endings = new Map<string, string[]>()
  for (const name of (await readdir(directory)).sort()) {
    const id = idOfFile(name)
    if (id === undefined) {
      if (isMisnamed(name)) onMisnamed(name)
      continue
    }
    const of = endings.get(id)
    if (of === undefined) endings.set(id, [name.slice(id.length)])
    else of.push(name.slice(id.length))
  }
  return endings
}

/** Looks up the stamps of the files of an instance with these endings. Leaves out those that do not exist. */
export async function lookUpStamps(
  directory: string,
  id: string,
  endings: readonly string[],
  nowMs: number,
): Promise<Stamps> {
  const found = await Promise.all(
    endings.map((ending) =>
      ifThere(stat(join(directory, id + ending), { bigint: true })).catch((error: unknown) => error as Error),
    ),
  )
  const texts: string[] = []
  let [isRecent, changedAtMs] = [false, 0]
  for (const [i, stats] of found.entries()) {
    if (stats === undefined) continue
    const isError = stats instanceof Error // the load reports it
    texts.push(`${endings[i] ?? ''}:${isError ? String((stats as NodeJS.ErrnoException).code) : stampOf(stats)}`)
    // A time in the future is from before the clock was set back: the next change gets another one.
    isRecent ||= isError || Math.abs(Number(stats.ctimeMs) - nowMs) < MAX_TICK_MS
    changedAtMs = Math.max(changedAtMs, isError ? Infinity : Number(stats.mtimeMs))
  }
  return { text: texts.join(' '), isRecent, changedAtMs }
}
