/**
 * The states of an account, and what may be changed in each (docs/accounts.md#states-of-an-account). Reading is always
 * allowed. The state itself comes from the region file.
 */
import { refuse, type Refusal } from './refusal.ts'
import { ROWS } from './resources.ts'

export const ACCOUNT_STATES = ROWS.account.states
export type AccountStatus = (typeof ACCOUNT_STATES)[number]
/** The states of an account that is no longer in use. Its owner may own another account. */
export const ENDED_STATES: readonly AccountStatus[] = ['closed', 'deleted']

/** What decides which changes an account allows. */
export interface AccountStanding {
  readonly status: AccountStatus
  readonly telephone_verified: boolean
  readonly valid_credit_card: boolean
}

/**
 * When a change is allowed. `needsVerification`: only with a verified telephone and a valid payment card.
 * `isWithdrawal`: the change only takes access away, so it does not wait for changes that the access allows.
 */
interface Rule {
  readonly states: readonly AccountStatus[]
  readonly needsVerification: boolean
  readonly isWithdrawal: boolean
}

const ALWAYS: Rule = { states: ACCOUNT_STATES, needsVerification: false, isWithdrawal: false }
const WITHDRAWAL: Rule = { ...ALWAYS, isWithdrawal: true }
const IN_USE: Rule = { states: ['active', 'overdue', 'warning'], needsVerification: true, isWithdrawal: false }

/**
 * When each change is allowed. Requests that correct an account or withdraw access are always allowed; all others need
 * an account in use, and verified.
 */
export const STATE_RULES = {
  'PUT /accounts/ID': ALWAYS,
  'PUT /account': ALWAYS,
  'PUT /api_clients/ID with only `permissions_group`, to `storage`': WITHDRAWAL,
  'POST /api_clients/ID/reset_secret': WITHDRAWAL,
  'DELETE /api_clients/ID': WITHDRAWAL,
  'POST /applications/ID/reset_secret': WITHDRAWAL,
  'DELETE /applications/ID': WITHDRAWAL,
  'DELETE /collaborations/ID': WITHDRAWAL,
  'PUT /user': ALWAYS,
  'PUT /users/ID': ALWAYS,
  'POST /user/collaborations/ID/accept': ALWAYS,
  'POST /user/collaborations/ID/reject': WITHDRAWAL,
  'DELETE /user/collaborations/ID': WITHDRAWAL,
  'POST /accounts/ID/reset_ftp_password': { ...IN_USE, isWithdrawal: true },
  'POST /account/reset_ftp_password': { ...IN_USE, isWithdrawal: true },
  'every other change': IN_USE,
} as const satisfies Readonly<Record<string, Rule>>
export type StateRule = keyof typeof STATE_RULES

/** True for a change that only takes access away. */
export function isWithdrawal(rule: StateRule): boolean {
  return STATE_RULES[rule].isWithdrawal
}

/** Why an account does not allow a change; undefined: it does. */
export function changeRefusal(rule: StateRule, account: AccountStanding): Refusal | undefined {
  const { states, needsVerification }: Rule = STATE_RULES[rule]
  if (!states.includes(account.status))
    return refuse(
      'account_not_active',
      `the account is ${account.status}: it can be read, but this change is not allowed`,
    )
  const missing = [
    ...(account.telephone_verified ? [] : ['verified telephone']),
    ...(account.valid_credit_card ? [] : ['valid payment card']),
  ]
  if (!needsVerification || missing.length === 0) return undefined
  return refuse(
    'account_not_verified',
    `the account has no ${missing.join(' and no ')}: it can be read, but this change is not allowed`,
  )
}
