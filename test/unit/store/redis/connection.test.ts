import { expect, test } from 'vitest'
import { connectTo, reasonOf, redirection } from '../../../../src/store/redis/connection.ts'

test('a redirection names a node, by name, by address, or the one that answered', () => {
  const from = { host: '10.0.0.1', port: 1 }
  expect(redirection('MOVED', new Error('MOVED 3999 10.0.0.2:6381'), from)).toEqual({ host: '10.0.0.2', port: 6381 })
  expect(redirection('MOVED', new Error('MOVED 3999 fd00::1:6381'), from)).toEqual({ host: 'fd00::1', port: 6381 })
  expect(redirection('ASK', new Error('ASK 3999 :6381'), from)).toEqual({ host: '10.0.0.1', port: 6381 })
  expect(redirection('ASK', new Error('MOVED 3999 n2:6381'), from)).toBeUndefined()
  expect(redirection('MOVED', 'MOVED 3999 n2:6381', from)).toBeUndefined()
})

test.each([
  ['NOAUTH Authentication required.', /^Redis requires a password: name its file in IMDS_REDIS_PASSWORD_FILE/],
  [
    'WRONGPASS invalid username-password pair or user is disabled.',
    /^the Redis user or its password is wrong: check USER@ in IMDS_STORE, and the file in IMDS_REDIS_PASSWORD_FILE/,
  ],
  ['NOPERM No permissions to access a key', /check IMDS_REGION and IMDS_HYPERVISOR first, then the keys/],
  ['NOPERM No permissions to access a channel', /check IMDS_REGION and IMDS_HYPERVISOR first, then the channels/],
  ["NOPERM this user has no permissions to run the 'hget' command", /give it \+hget/],
  [
    "ERR The user executing the script can't publish to the channel mentioned in the command script: 1, on @user_script:1.",
    /check IMDS_REGION and IMDS_HYPERVISOR first, then the channels/,
  ],
])('%s is explained with its remedy, and without a placeholder', (message, reason) => {
  expect(reasonOf(new Error(message))).toMatch(reason)
  expect(reasonOf(new Error(message))).not.toContain('{REGION}')
})

test('a certificate for other names is told with its names', () => {
  const error = Object.assign(new Error('x'), {
    code: 'ERR_TLS_CERT_ALTNAME_INVALID',
    reason: "Host: r. is not in the cert's altnames: DNS:redis.example.com",
  })
  expect(reasonOf(error)).toBe(
    "the server's certificate is for other names: use one of them in IMDS_STORE (Host: r. is not in the cert's altnames: DNS:redis.example.com)",
  )
})

test('a user without a password, and a file that cannot be read, are told before anything connects', async () => {
  const node = { host: '127.0.0.1', port: 1 }
  await expect(connectTo({ url: 'redis://imds-hv1@127.0.0.1:1' }, node, 'x')).rejects.toThrow(
    'names the user imds-hv1, and there is no password: name its file in IMDS_REDIS_PASSWORD_FILE',
  )
  await expect(connectTo({ url: 'rediss://127.0.0.1:1', caFile: '/none.pem' }, node, 'x')).rejects.toThrow(
    '/none.pem cannot be read: ENOENT',
  )
})
