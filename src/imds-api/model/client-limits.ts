/**
 * What an API client may do less than its account (extensions, docs/accounts.md#limits-of-an-api-client): only read,
 * only until a time, only from some networks.
 */
import { buildNetworkTest } from '../../metadata/address.ts'

export const MAX_NETWORKS = 32
/** The longest time that the former secret stays valid beside a new one, in seconds: a week. */
export const MAX_KEEP_OLD_SECONDS = 604_800

/** The limits as the database has them. */
export interface LimitColumns {
  readonly read_only: boolean
  readonly expires_at: Date | null
  readonly allow_access: readonly string[]
}

/**
 * `allows`: whether the client may be used from an address; empty: that of a unix socket, which is in no network.
 * `expiresAtMs`: since 1970; Infinity: never.
 */
export interface ClientLimits {
  readonly readOnly: boolean
  readonly allows: (address: string) => boolean
  readonly expiresAtMs: number
}

export function limitsOf({ read_only, expires_at, allow_access }: LimitColumns): ClientLimits {
  return {
    readOnly: read_only,
    allows: allow_access.length === 0 ? () => true : buildNetworkTest(allow_access),
    expiresAtMs: expires_at?.getTime() ?? Infinity,
  }
}
