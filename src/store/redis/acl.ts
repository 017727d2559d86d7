/** The Redis users of a region, as lines of an ACL file. They need Redis 7 (`%R~`, `%W~`). deploy/redis.acl has them. */
import { keysOf } from './keys.ts'

const DAEMON_COMMANDS =
  'set del get getrange exists memory|usage hget hgetall hmget hstrlen zrevrangebylex subscribe ping info ' +
  'client|setname acl|dryrun asking'
const PUBLISHER_COMMANDS =
  'eval evalsha get set del exists getrange scan memory|usage hget hgetall hmget hstrlen hset hdel zadd zrem ' +
  'zrangebylex zrevrangebylex publish time info client|setname acl|dryrun'

/**
 * Nobody can log in as the default user, but Redis loads its append-only file as that user: without rights it would skip
 * what a script or a transaction has written, which is each record.
 */
export const DEFAULT_USER = 'user default off ~* &* +@all'
/** The administrator, without a password. */
export const ADMIN_USER = 'user admin on >PASSWORD ~* &* +@all'

/** The user of the daemon of a hypervisor, without its password. */
export function formatDaemonUser(region: string, hypervisor: string): string {
  const keys = keysOf(region)
  const writes = [keys.announcement(hypervisor), keys.reports(hypervisor, '*')].map((key) => `%W~${key}`)
  const user = formatUser(hypervisor, [`%R~${keys.region}*`, ...writes], keys.notices(hypervisor), DAEMON_COMMANDS)
  return `${user} (%W~${keys.behind} +setnx)` // it may set the mark, and neither change nor delete it
}

/** The user of publishers: imdsctl, imds-api or your control plane. */
export function formatPublisherUser(region: string): string {
  const keys = keysOf(region)
  return formatUser('publisher', [`~${keys.region}*`], keys.notices('*'), PUBLISHER_COMMANDS)
}

function formatUser(name: string, keys: readonly string[], channel: string, commands: string): string {
  const rights = commands.split(' ').map((command) => `+${command}`)
  const rules = ['resetkeys', ...keys, 'resetchannels', `&${channel}`, 'nocommands', ...rights]
  return `user imds-${name} on >PASSWORD ${rules.join(' ')}`
}
