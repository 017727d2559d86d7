import { expect, test } from 'vitest'
import { parseSshKeys } from '../../../../src/imds-api/model/ssh-key.ts'
import { parse } from '../../../../src/metadata/record.ts'
import { MAX_KEYS_OF_USER } from '../../../../src/metadata/schema.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const ED25519 = 'AAAAC3NzaC1lZDI1NTE5AAAAIM5WgrQ5SynmwXKzx1G+R0wr5Bnrw/KGzs58u3PZ4mu5'
const P256 =
  'AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBDY0i3jGn3gDriURxOxn6sxvbxXpWsHp7cqcRb0n9kGGSD4G5wD3Snll+Y3yraXSGjIL2L1eFlu4SyzJwu7VsSI='

/** The base64 text of the parts of a key. */
function keyOf(...parts: readonly (string | Buffer)[]): string {
  return Buffer.concat(
    parts.flatMap((part) => {
      const length = Buffer.alloc(4)
      length.writeUInt32BE(part.length)
      return [length, Buffer.from(part)]
    }),
  ).toString('base64')
}

const KEYS = [
  `ssh-ed25519 ${ED25519} ada@example`,
  `ssh-ed25519 ${ED25519}`,
  `ssh-ed25519 ${ED25519} Ada's key, über`,
  `ecdsa-sha2-nistp256 ${P256} ada`,
  ...[
    'ssh-rsa',
    'ecdsa-sha2-nistp384',
    'ecdsa-sha2-nistp521',
    'sk-ssh-ed25519@openssh.com',
    'sk-ecdsa-sha2-nistp256@openssh.com',
  ].map((type) => `${type} ${keyOf(type, Buffer.alloc(100))} a`),
]

test.each(KEYS.map((key) => [key.split(' ')[0]!, key]))(
  'an %s key is accepted, and a record can have it',
  (_type, key) => {
    expect(parseSshKeys(key)).toEqual({ ok: true, value: key })
    expect(parse(anInstance({ publicKeys: [{ user: 'usr-ada01', key }] }))).toMatchObject({ ok: true })
  },
)

test('space around a key is dropped: clients send a whole file', () => {
  expect(parseSshKeys(` ${KEYS[0]!}\r\n\n`)).toEqual({ ok: true, value: KEYS[0] })
})

test('a user may have several keys, one per line, with space and empty lines between them', () => {
  expect(parseSshKeys(`\n${KEYS[0]!}\r\n\r\n  ${KEYS[3]!} \n${KEYS[2]!}`)).toEqual({
    ok: true,
    value: [KEYS[0], KEYS[3], KEYS[2]].join('\n'),
  })
})

test('each bad line of several has a fault with its number, and no fault has a part of the text', () => {
  const parsed = parseSshKeys(`${KEYS[0]!}\n\nssh-rsa no\n${KEYS[1]!}\nssh-dss AAAA\r\n`)
  expect(parsed.ok ? [] : parsed.faults).toEqual([
    '(line 3) must have the whole base64 text of a key',
    expect.stringMatching(/^\(line 5\) must begin with a type of key: ssh-ed25519, /),
  ])
})

test('a private key is refused, line by line', () => {
  const parsed = parseSshKeys('-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n')
  expect(parsed.ok ? [] : parsed.faults).toHaveLength(3)
})

test('a user has at most as many keys as a record can hold, and as many characters as one key', () => {
  const lines = (count: number) => Array.from({ length: count }, () => KEYS[1]!).join('\n')
  const most = parseSshKeys(`${lines(MAX_KEYS_OF_USER)}\n`)
  expect(most).toEqual({ ok: true, value: lines(32) })
  const [key, ...moreKeys] = lines(32).split('\n')
  expect(parse(anInstance({ publicKeys: [{ user: 'usr-ada01', key, moreKeys }] }))).toMatchObject({ ok: true })
  expect(parseSshKeys(lines(33))).toEqual({
    ok: false,
    faults: ['must have at most 32 keys, one per line, and has 33 lines'],
  })
  const long = (characters: number) => `${KEYS[1]!}\n${`${KEYS[1]!} `.padEnd(characters - KEYS[1]!.length - 1, 'x')}`
  expect(parseSshKeys(long(16_384))).toMatchObject({ ok: true })
  expect(parseSshKeys(long(16_385))).toEqual({ ok: false, faults: ['must have at most 16384 characters'] })
})

test.each(['', ' ', '\n'])('%j is no key, which clears it', (text) => {
  expect(parseSshKeys(text)).toEqual({ ok: true, value: '' })
})

test.each([
  ['a line break in the comment', `${KEYS[0]!}\rx`, /^must be one line/],
  ['a control character', `${KEYS[0]!}\x1b[2J`, /^must be one line/],
  ['options', `command="sh" ${KEYS[0]!}`, /^must be one line/],
  ['a type alone', 'ssh-ed25519', /^must be one line/],
  ['an unknown type', `ssh-ed448 ${keyOf('ssh-ed448', 'a')}`, /^must begin with a type of key: ssh-ed25519, /],
  [
    'a certificate',
    `ssh-ed25519-cert-v01@openssh.com ${keyOf('ssh-ed25519-cert-v01@openssh.com', 'a')}`,
    /^must begin with a type/,
  ],
  ['a type that OpenSSH removed', `ssh-dss ${keyOf('ssh-dss', 'a')}`, /^must begin with a type/],
  [
    'another type inside',
    `ssh-rsa ${ED25519}`,
    /^must have a key of the type ssh-rsa: its base64 text is a key of another type$/,
  ],
  ['a key that was cut', `ssh-ed25519 ${ED25519.slice(0, -4)}`, /^must have the whole base64 text/],
  [
    'a key that was cut in a length',
    `ssh-ed25519 ${Buffer.from(ED25519, 'base64').subarray(0, 17).toString('base64')}`,
    /^must have the whole/,
  ],
  ['a key with more behind it', `ssh-ed25519 ${ED25519}AAAA`, /^must have the whole/],
  ['a type without a key', `ssh-ed25519 ${keyOf('ssh-ed25519')}`, /^must have the whole/],
  ['an endless key', `ssh-rsa ${keyOf('ssh-rsa', Buffer.alloc(13_000))}`, /^must have at most 16384 characters$/],
])('%s is refused', (_name, text, fault) => {
  const parsed = parseSshKeys(text)
  expect(parsed.ok ? [] : parsed.faults).toEqual([expect.stringMatching(fault)])
})
