import { expect, test } from 'vitest'
import { composeInvitation } from '../../../../src/imds-api/mail/invitation.ts'

const INVITATION = {
  id: 'col-abcde',
  email: 'mary@example.com',
  account: { id: 'acc-one01', name: 'Analytical Engines' },
  inviter: 'Ada Lovelace',
  hasUser: true,
}
const URL = 'https://cloud.example.com/invitations?lang=en#top'

test('an invitation says who invites to which account, and links to the page with its id', () => {
  const mail = composeInvitation(INVITATION, URL)
  expect(mail).toMatchObject({
    to: 'mary@example.com',
    subject: 'Ada Lovelace invites you to the account Analytical Engines',
  })
  for (const text of [
    'Ada Lovelace invites you to work in the account "Analytical Engines" (acc-one01).',
    'mary@example.com',
    '\nhttps://cloud.example.com/invitations?lang=en&collaboration=col-abcde#top\n',
  ]) {
    expect(mail.text).toContain(text)
  }
})

test('only an invitation of an address without a user says to sign up', () => {
  expect(composeInvitation({ ...INVITATION, hasUser: false }, URL).text).toContain(
    'There is no user with this address yet: sign up with it first.\n',
  )
  expect(composeInvitation(INVITATION, URL).text).not.toContain('sign up')
})

test.each([
  ['a line break', 'Ada\r\nBcc: eve@example.com', 'Ada Bcc: eve@example.com'],
  ['a separator of lines', 'Ada\u2028Lovelace\u2029', 'Ada Lovelace'],
  ['control characters', '\0Ada\x1b[31m\x7f Lovelace', 'Ada [31m Lovelace'],
  ['a change of direction', 'Ada\u202eecalevoL', 'Ada ecalevoL'],
  ['a character without width', 'A\u200bda', 'A da'],
  ['a long text', 'a'.repeat(200), `${'a'.repeat(80)}...`],
  ['a long text with a surrogate pair at its end', `${'a'.repeat(79)}\u{1f600}b`, `${'a'.repeat(79)}\ufffd...`],
])('%s in a name is removed', (_what, name, line) => {
  const byInviter = composeInvitation({ ...INVITATION, inviter: name }, URL)
  const byAccount = composeInvitation({ ...INVITATION, account: { id: 'acc-one01', name } }, URL)
  expect(byInviter.subject).toBe(`${line} invites you to the account Analytical Engines`)
  expect(byAccount.subject).toBe(`Ada Lovelace invites you to the account ${line}`)
  for (const { text } of [byInviter, byAccount]) {
    expect(text).toContain(line)
    expect(text.split('\n')).toHaveLength(8)
  }
})
