import { expect, test } from 'vitest'
import { COMPUTE_VARIABLES, computeListenerOf } from '../../../../src/imds-api/compute/settings.ts'
import { readVariables } from '../../../../src/runtime/variables.ts'

const FILES = {
  IMDS_API_COMPUTE_TLS_CERT_FILE: '/c',
  IMDS_API_COMPUTE_TLS_KEY_FILE: '/k',
  IMDS_API_COMPUTE_TLS_CLIENT_CA_FILE: '/a',
}

function parse(env: Partial<Record<keyof typeof COMPUTE_VARIABLES, string>>) {
  const { values, fault, result } = readVariables(COMPUTE_VARIABLES, env, /^$/)
  const parsed = result(computeListenerOf(values, fault))
  return parsed.ok
    ? { value: parsed.value, faults: [] }
    : { value: undefined, faults: parsed.faults.map(({ variable, message }) => `${variable} ${message}`) }
}

test('by default it is on loopback, without TLS', () => {
  expect(parse({})).toEqual({
    value: { listen: { host: '127.0.0.1', port: 8171 }, tls: undefined, retrySeconds: 60 },
    faults: [],
  })
})

test('a unix socket and loopback need no certificates; every other address does', () => {
  expect(parse({ IMDS_API_COMPUTE_LISTEN: 'unix:/run/c' }).value).toMatchObject({
    listen: { path: '/run/c' },
    tls: undefined,
  })
  expect(parse({ IMDS_API_COMPUTE_LISTEN: '[::1]:1' }).faults).toEqual([])
  for (const listen of ['10.0.0.1:8171', '0.0.0.0:8171', '[::]:8171']) {
    expect(parse({ IMDS_API_COMPUTE_LISTEN: listen }).faults).toEqual([
      expect.stringMatching(
        /^IMDS_API_COMPUTE_LISTEN .* must be a loopback address or a unix socket without client certificates: set IMDS_API_COMPUTE_TLS_CERT_FILE, /,
      ),
    ])
    expect(
      parse({ ...FILES, IMDS_API_COMPUTE_LISTEN: listen, IMDS_API_COMPUTE_RETRY_SECONDS: '5' }).value,
    ).toMatchObject({ tls: { certificate: '/c', key: '/k', clientCa: '/a' }, retrySeconds: 5 })
  }
})

test('everything that is wrong is named at once', () => {
  expect(
    parse({ IMDS_API_COMPUTE_LISTEN: 'x', IMDS_API_COMPUTE_TLS_KEY_FILE: '/k', IMDS_API_COMPUTE_RETRY_SECONDS: '0' }),
  ).toEqual({
    value: undefined,
    faults: [
      'IMDS_API_COMPUTE_LISTEN "x" is not ADDRESS:PORT or unix:PATH, such as 127.0.0.1:8171 or unix:/run/imds-api/compute.sock',
      'IMDS_API_COMPUTE_RETRY_SECONDS must be a whole number from 1 to 86400, in decimal digits',
      'IMDS_API_COMPUTE_TLS_CERT_FILE is not set: IMDS_API_COMPUTE_TLS_KEY_FILE needs it',
      'IMDS_API_COMPUTE_TLS_CLIENT_CA_FILE is not set: IMDS_API_COMPUTE_TLS_KEY_FILE needs it',
    ],
  })
  expect(parse({ ...FILES, IMDS_API_COMPUTE_LISTEN: 'unix:/run/c' }).faults).toEqual([
    'IMDS_API_COMPUTE_LISTEN must be ADDRESS:PORT with client certificates: a unix socket needs none',
  ])
  for (const seconds of ['x', '1.5', '86401', '0x10'])
    expect(parse({ IMDS_API_COMPUTE_RETRY_SECONDS: seconds }).faults).toHaveLength(1)
})
