import { readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { reasonOf } from '../../../../src/store/redis/reasons.ts'

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

test("a command that redis.acl gives to publishers only needs the publisher's user", () => {
  const [ofHypervisor, ofPublisher] = readFileSync('deploy/redis.acl', 'utf8')
    .split('\n')
    .filter((line) => line.startsWith('user imds-'))
    .map((line) => [...line.matchAll(/ \+([a-z]+)(?= |$)/g)].map(([, command]) => command!)) as [string[], string[]]
  for (const command of ofPublisher)
    expect(
      reasonOf(new Error(`NOPERM this user has no permissions to run the '${command}' command`)).includes(
        "use the publisher's user",
      ),
      command,
    ).toBe(!ofHypervisor.includes(command))
})

test('the reason for a certificate of other names has its names', () => {
  const error = Object.assign(new Error('x'), {
    code: 'ERR_TLS_CERT_ALTNAME_INVALID',
    reason: "Host: r. is not in the cert's altnames: DNS:redis.example.com",
  })
  expect(reasonOf(error)).toBe(
    "the server's certificate is for other names: use one of them in IMDS_STORE (Host: r. is not in the cert's altnames: DNS:redis.example.com)",
  )
})
