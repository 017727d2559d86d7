/**
 * The limits of an account that its entry in the region file may set but that no field of the API shows: those of
 * resources (resources.ts), and others. Pure.
 *
 * changes/limits.ts refuses what is beyond them. An account that is beyond a limit already keeps what it has.
 */
import { ALL_ROWS, type DefaultLimitName } from './resources.ts'

interface LimitRule {
  readonly default: number
  readonly minimum: number
  readonly maximum?: number
  readonly of: string
}

const OF_RESOURCES = Object.fromEntries(
  ALL_ROWS.filter(({ limit }) => limit?.default !== undefined).map(({ plural, table, limit }) => [
    `${table!}_limit`,
    { of: plural, minimum: 0, ...limit },
  ]),
) as Readonly<Record<DefaultLimitName, LimitRule>>

const OTHERS = {
  access_tokens_limit: {
    default: 1000,
    minimum: 1,
    of: 'access tokens of one API client, also those that expired in the last day. One more ends the oldest',
  },
  config_maps_bytes_limit: { default: 16_777_216, minimum: 0, of: 'bytes of the `data` of all config maps' },
  open_actions_limit: {
    default: 1000,
    minimum: 0,
    of: 'actions on servers without an outcome, with `IMDS_API_COMPUTE=reported`',
  },
} as const satisfies Readonly<Record<string, LimitRule>>

export type AccountLimit = DefaultLimitName | keyof typeof OTHERS
/** Each limit: its default, its lowest and highest value, and what it counts. */
export const ACCOUNT_LIMITS: Readonly<Record<AccountLimit, LimitRule>> = { ...OF_RESOURCES, ...OTHERS }

export const DEFAULT_LIMITS = Object.fromEntries(
  Object.entries(ACCOUNT_LIMITS).map(([name, rule]) => [name, rule.default]),
) as Readonly<Record<AccountLimit, number>>
