/** What a process of root does as another user, and about directories of other users. */
import { statSync, type Stats } from 'node:fs'
import { dirname } from 'node:path'

/**
 * Runs `use` with the effective user and the groups of `user`, so that the kernel decides what that user may do, with
 * groups and access control lists. Only root can. Throws if there is no such user. `use`
 * must be synchronous.
 */
export function asUser<T>(user: string, use: () => T): T {
  const rights = process as unknown as UserCalls
  const groups = rights.getgroups()
  try {
    rights.initgroups(user, user)
    rights.setegid(user)
    rights.seteuid(user)
    return use()
  } finally {
    rights.seteuid(0)
    rights.setegid(0)
    rights.setgroups(groups)
  }
}

/** What Node has on POSIX systems; its types lack `initgroups`. */
interface UserCalls {
  getgroups(): number[]
  setgroups(groups: readonly number[]): void
  initgroups(user: string, extraGroup: string): void
  setegid(group: string | number): void
  seteuid(user: string | number): void
}

/**
 * The owner of a directory (before it exists: of the nearest one above it) if this is a process of root and the
 * directory belongs to somebody else. Such an owner can put links into it that lead root to any file, and the id of any
 * process into a file that says which one to end.
 */
export function otherOwnerOf(directory: string): Pick<Stats, 'uid' | 'gid'> | undefined {
  if (process.getuid?.() !== 0) return undefined
  let existing = directory
  let stats = statSync(existing, { throwIfNoEntry: false })
  while (stats === undefined && existing !== dirname(existing)) {
    existing = dirname(existing)
    stats = statSync(existing, { throwIfNoEntry: false })
  }
  return stats === undefined || stats.uid === 0 ? undefined : stats
}

/** True if root would open a file of somebody else by a hard link, which the owner of a directory has put there. */
export function isLinkOfOther({ nlink, uid }: Pick<Stats, 'nlink' | 'uid'>, directory: string): boolean {
  return process.geteuid?.() === 0 && nlink > 1 && uid !== statSync(directory).uid
}
