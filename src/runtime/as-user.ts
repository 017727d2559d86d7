/**
 * Checks what another user may do, by taking that user's rights for a moment: the kernel decides, with groups and
 * access control lists.
 */

/**
 * Runs `use` with the effective user and the groups of `user`. Only root can. Throws if there is no such user. `use`
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
