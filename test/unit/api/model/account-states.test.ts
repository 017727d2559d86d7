import { expect, test } from 'vitest'
import { ACCOUNT_STATES, CHANGES, refuseChange, type ChangeRequest } from '../../../../src/api/model/account-states.ts'

const REFUSED = ['pending', 'suspended', 'terminated', 'closed', 'deleted']

test('an account has the eight states of the interface', () => {
  expect(ACCOUNT_STATES).toEqual(['pending', 'active', 'overdue', 'warning', 'suspended', 'terminated', 'closed', 'deleted'])
})

test.each(ACCOUNT_STATES)('an account that is %s allows changes only while it is active, overdue or warning', (status) => {
  expect(refuseChange('every other change', { status, telephone_verified: true })?.name).toBe(REFUSED.includes(status) ? 'account_not_active' : undefined)
  expect(refuseChange('every other change', { status, telephone_verified: false })?.name).toBe(REFUSED.includes(status) ? 'account_not_active' : 'account_not_verified')
})

test('what corrects an account or withdraws access is allowed in every state, verified or not', () => {
  for (const request of Object.keys(CHANGES) as ChangeRequest[]) {
    if (request === 'every other change') continue
    for (const status of ACCOUNT_STATES) {
      for (const telephone_verified of [true, false]) expect(refuseChange(request, { status, telephone_verified })).toBeUndefined()
    }
  }
})

test('a refusal says the state', () => {
  expect(refuseChange('every other change', { status: 'closed', telephone_verified: true })?.errors).toEqual(['the account is closed: it can be read, but this change is not allowed'])
})
