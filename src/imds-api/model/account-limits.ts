/**
 * The limits of an account that its entry in the region file may set but that no field of the API shows. Pure.
 *
 * changes/limits.ts refuses what is beyond them. An account that is beyond a limit already keeps what it has.
 */

interface LimitRule {
  readonly default: number
  readonly minimum: number
  readonly of: string
}

/** Each limit: its default, its lowest value, and what it counts. */
export const ACCOUNT_LIMITS = {
  server_groups_limit: { default: 256, minimum: 1, of: 'server groups, with the default one' },
  api_clients_limit: { default: 100, minimum: 0, of: 'API clients' },
  access_tokens_limit: {
    default: 1000,
    minimum: 1,
    of:
      'access tokens of one API client, with those that expired less than a day ago. ' +
      'One more ends the oldest of this client; requests at the same time may exceed it for a moment',
  },
  applications_limit: { default: 50, minimum: 0, of: 'applications' },
  collaborations_limit: { default: 100, minimum: 0, of: 'collaborations that are pending or accepted' },
  config_maps_limit: { default: 100, minimum: 0, of: 'config maps' },
  config_maps_bytes_limit: { default: 16_777_216, minimum: 0, of: 'bytes of the `data` of all config maps' },
  images_limit: {
    default: 50,
    minimum: 0,
    of: 'images of the account: its snapshots, and its images of the region file',
  },
  open_actions_limit: {
    default: 1000,
    minimum: 0,
    of: 'actions on servers without an outcome, with `IMDS_API_COMPUTE=reported`',
  },
} as const satisfies Readonly<Record<string, LimitRule>>

/** A limit. */
export type AccountLimit = keyof typeof ACCOUNT_LIMITS

/** The default of each limit. */
export const DEFAULT_LIMITS = Object.fromEntries(
  Object.entries(ACCOUNT_LIMITS).map(([name, rule]) => [name, rule.default]),
) as Readonly<Record<AccountLimit, number>>
