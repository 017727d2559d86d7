import { expect, test } from 'vitest'
import {
  ACCOUNT_STATES,
  STATE_RULES,
  isWithdrawal,
  changeRefusal,
  type AccountStatus,
  type StateRule,
} from '../../../../src/imds-api/model/account-states.ts'

const REFUSED = ['pending', 'suspended', 'terminated', 'closed', 'deleted']

test.each(ACCOUNT_STATES)(
  'an account that is %s allows changes only while it is active, overdue or warning',
  (status) => {
    const refusalOf = (account: object) =>
      changeRefusal('every other change', { status, telephone_verified: true, valid_credit_card: true, ...account })
        ?.name
    expect(refusalOf({})).toBe(REFUSED.includes(status) ? 'account_not_active' : undefined)
    for (const missing of ['telephone_verified', 'valid_credit_card'])
      expect(refusalOf({ [missing]: false })).toBe(
        REFUSED.includes(status) ? 'account_not_active' : 'account_not_verified',
      )
  },
)

test('what corrects an account or withdraws access is allowed in every state, verified or not', () => {
  for (const request of Object.keys(STATE_RULES) as StateRule[]) {
    if (request === 'every other change' || request.endsWith('reset_ftp_password')) continue
    for (const status of ACCOUNT_STATES) {
      for (const is of [true, false])
        expect(changeRefusal(request, { status, telephone_verified: is, valid_credit_card: is })).toBeUndefined()
    }
  }
})

test('a refusal says the state, or what the account does not have', () => {
  const errorsOf = (status: AccountStatus, telephone_verified: boolean, valid_credit_card: boolean) =>
    changeRefusal('every other change', { status, telephone_verified, valid_credit_card })?.details.map(
      ({ message }) => message,
    )
  expect(errorsOf('closed', true, true)).toEqual([
    'the account is closed: it can be read, but this change is not allowed',
  ])
  expect(errorsOf('active', true, false)).toEqual([
    'the account has no valid payment card: it can be read, but this change is not allowed',
  ])
  expect(errorsOf('active', false, false)).toEqual([
    'the account has no verified telephone and no valid payment card: it can be read, but this change is not allowed',
  ])
})

test('what only takes access away is a withdrawal', () => {
  expect((Object.keys(STATE_RULES) as StateRule[]).filter(isWithdrawal)).toEqual([
    'PUT /api_clients/ID with only `permissions_group`, to `storage`',
    'POST /api_clients/ID/reset_secret',
    'DELETE /api_clients/ID',
    'POST /applications/ID/reset_secret',
    'DELETE /applications/ID',
    'DELETE /collaborations/ID',
    'POST /user/collaborations/ID/reject',
    'DELETE /user/collaborations/ID',
    'POST /accounts/ID/reset_ftp_password',
    'POST /account/reset_ftp_password',
  ])
})
