import { expect, test } from 'vitest'
import { MAIL_VARIABLES, mailSettingsOf } from '../../../../src/imds-api/mail/settings.ts'
import { readVariables } from '../../../../src/runtime/variables.ts'

const MINIMAL = {
  IMDS_API_SMTP: 'smtp://mail.example.com',
  IMDS_API_MAIL_FROM: 'noreply@example.com',
  IMDS_API_INVITATION_URL: 'https://cloud.example.com/invitations',
}
const WITH_USER = {
  ...MINIMAL,
  IMDS_API_SMTP: 'smtp://imds@mail.example.com',
  IMDS_API_SMTP_PASSWORD_FILE: '/run/password',
}

function parse(env: Readonly<Record<string, string>>) {
  const { values, fault, result } = readVariables(MAIL_VARIABLES, env, /^$/)
  const parsed = result({ mail: mailSettingsOf(values, fault) })
  return parsed.ok
    ? { value: parsed.value.mail, faults: [] }
    : { value: undefined, faults: parsed.faults.map(({ variable, message }) => `${variable} ${message}`) }
}

test('without IMDS_API_SMTP invitations are not sent', () => {
  expect(parse({})).toEqual({ value: undefined, faults: [] })
  expect(parse({ ...MINIMAL, IMDS_API_SMTP: undefined as unknown as string })).toEqual({ value: undefined, faults: [] })
})

test.each([
  ['smtp://mail.example.com', { host: 'mail.example.com', port: 587, tls: 'optional' }],
  ['smtp://mail.example.com:25/', { host: 'mail.example.com', port: 25, tls: 'optional' }],
  ['smtps://mail.example.com', { host: 'mail.example.com', port: 465, tls: 'smtps' }],
  ['smtp://[2001:db8::25]:25', { host: '2001:db8::25', port: 25, tls: 'optional' }],
  ['smtp://127.0.0.1:25', { host: '127.0.0.1', port: 25, tls: 'none' }],
  ['smtp://[::1]:25', { host: '::1', port: 25, tls: 'none' }],
  ['smtp://localhost:25', { host: 'localhost', port: 25, tls: 'none' }],
])('%s is a mail server without credentials', (url, server) => {
  expect(parse({ ...MINIMAL, IMDS_API_SMTP: url })).toEqual({
    value: {
      ...server,
      credentials: undefined,
      from: 'noreply@example.com',
      invitationUrl: 'https://cloud.example.com/invitations',
    },
    faults: [],
  })
})

test.each([
  ['smtp://imds@mail.example.com', 'starttls'],
  ['smtp://imds@localhost', 'starttls'],
  ['smtps://imds@mail.example.com', 'smtps'],
])('credentials for %s are sent by TLS only', (url, tls) => {
  expect(parse({ ...WITH_USER, IMDS_API_SMTP: url }).value).toMatchObject({
    tls,
    credentials: { user: 'imds', passwordFile: '/run/password' },
  })
})

test('a user name may be an address', () => {
  expect(
    parse({ ...WITH_USER, IMDS_API_SMTP: 'smtp://imds%40example.com@mail.example.com' }).value?.credentials?.user,
  ).toBe('imds@example.com')
})

test.each([
  'https://mail.example.com',
  'mail.example.com',
  'smtp://',
  'smtp://mail.example.com/x',
  'smtp://mail.example.com?tls=no',
  'smtp://im%zzds@mail.example.com',
  'smtp://mail.example.com:0',
])('%s is no mail server', (url) => {
  expect(parse({ ...WITH_USER, IMDS_API_SMTP: url }).faults).toEqual([
    expect.stringMatching(/^IMDS_API_SMTP must be smtp:/),
  ])
})

test.each<[Readonly<Record<string, string>>, readonly string[]]>([
  [
    { ...WITH_USER, IMDS_API_SMTP: 'smtp://imds:secret@mail.example.com' },
    ['IMDS_API_SMTP must not have a password in it'],
  ],
  [
    { IMDS_API_SMTP: 'smtp://imds@mail.example.com' },
    ['IMDS_API_SMTP_PASSWORD_FILE is not set: IMDS_API_SMTP names a user'],
  ],
  [{ IMDS_API_SMTP_PASSWORD_FILE: '/p' }, ['IMDS_API_SMTP must name the user']],
  [
    { IMDS_API_MAIL_FROM: '', IMDS_API_INVITATION_URL: '' },
    [
      'IMDS_API_MAIL_FROM is not set: IMDS_API_SMTP needs it',
      'IMDS_API_INVITATION_URL is not set: IMDS_API_SMTP needs',
    ],
  ],
  [{ IMDS_API_MAIL_FROM: 'Cloud <noreply@example.com>' }, ['IMDS_API_MAIL_FROM must be an address']],
  [{ IMDS_API_INVITATION_URL: 'cloud.example.com' }, ['IMDS_API_INVITATION_URL must be']],
  [{ IMDS_API_INVITATION_URL: 'javascript:alert(1)' }, ['IMDS_API_INVITATION_URL must be']],
  [
    { IMDS_API_INVITATION_URL: 'https://ada:secret@cloud.example.com' },
    ['IMDS_API_INVITATION_URL must not have a user or a password in it, since every invitation shows it'],
  ],
])('%j is refused', (env, expected) => {
  const { faults } = parse({ ...MINIMAL, ...env })
  expect(faults).toEqual(expected.map((fault) => expect.stringContaining(fault) as string))
  expect(JSON.stringify(faults)).not.toContain('secret')
})
