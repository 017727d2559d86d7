import { expect, test } from 'vitest'
import { buildRedaction, REMOVED } from '../../../src/bugreport/redact.ts'

const key = Buffer.alloc(32, 0xa5).toString('base64')
const redact = buildRedaction(['hunter2!/x', key, '', 'abc'])

test('a known secret is removed in every encoding', () => {
  const secret = Buffer.from('hunter2!/x')
  for (const text of [
    'hunter2!/x',
    encodeURIComponent('hunter2!/x'),
    secret.toString('base64'),
    secret.toString('base64url'),
    secret.toString('hex'),
    key,
    Buffer.from(key, 'base64').toString('hex'),
    Buffer.from(key, 'base64').toString('base64url'),
  ])
    expect(redact(`a ${text} b`)).toBe(`a ${REMOVED} b`)
})

test('a short secret does not remove ordinary words', () => expect(redact('abc abcdef')).toBe('abc abcdef'))

test.each([
  ['redis://user:p@ss/word@host:6379/0', `redis://user:${REMOVED}@host:6379/0`],
  ['Authorization: Bearer abc.def', `Authorization: Bearer${REMOVED}`],
  ['"x-aws-ec2-metadata-token":"abc=="', `"x-aws-ec2-metadata-token":${REMOVED}`],
  ['db_password=one two', `db_password=${REMOVED} two`],
  ["API_KEY='one two'", `API_KEY=${REMOVED}`],
  ['Cookie: a=b; c=d', `Cookie: ${REMOVED}`],
  ['-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nnext', `${REMOVED}\nnext`],
  ['-----BEGIN PRIVATE KEY-----\ncut off', REMOVED],
  ['imds-api[7]: {"time":"2026-11-20T15:04:05Z","user":"Ada"}', `imds-api[7]: ${REMOVED}`],
  ['{"code":"23505","detail":"Key (name)=(\\"Ada\\") exists."}', `{"code":"23505","detail":${REMOVED}}`],
  ['no mailbox <ada.l+x@mail.example.com>', `no mailbox <${REMOVED}>`],
  ['id AQAEAE3xk2b9Zl7QwPlm0Tt5vUuRkA==', `id ${REMOVED}`],
])('what looks like a secret is removed: %s', (text, expected) => expect(redact(text)).toBe(expected))

test.each([
  'redis://imds-hv1@10.77.0.2:6379',
  'postgres://imds@db.example.com/imds',
  'imds-api[7]: {"level":"info","time":"2026-11-20T15:04:05Z","msg":"listening"}',
  'IMDS_REDIS_PASSWORD_FILE=/etc/imds/password',
  'imds_session_requests_total{session="none"} 3',
  'sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855',
  'imds-network@default.socket',
])('what is no secret stays: %s', (text) => expect(redact(text)).toBe(text))
