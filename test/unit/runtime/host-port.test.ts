import { expect, test } from 'vitest'
import { formatHostPort, parseHostPort } from '../../../src/runtime/host-port.ts'

test.each([
  ['10.0.0.1:80', '10.0.0.1', 80], ['localhost:0', 'localhost', 0], ['[fd00::1]:65535', 'fd00::1', 65_535], ['redis-1.example_x.com:6379', 'redis-1.example_x.com', 6379],
])('%s is read and written the same', (text, host, port) => {
  expect(parseHostPort(text)).toEqual({ host, port })
  expect(formatHostPort({ host, port })).toBe(text)
})

test.each([['10.0.0.1', '10.0.0.1'], ['[fd00::1]', 'fd00::1'], ['r', 'r']])('the port of %s is left to the caller', (text, host) => {
  expect(parseHostPort(text)).toMatchObject({ host })
  expect(parseHostPort(text)?.port === undefined).toBe(true)
})

test.each([
  '', ':80', '10.0.0.1:', '10.0.0.1:65536', '10.0.0.1:999999', '10.0.0.1:-1', '10.0.0.1:8o', '10.0.0.1:80:90', 'fd00::1', 'fd00::1:80', '[fd00::1', 'fd00::1]:80', '[fe80::1%eth0]:80', '[r]:80', 'a b:80',
  'user@r:80', 'r/0', 'r:80\n', ' r:80', 'é:80',
])('%j is no host with a port', (text) => { expect(parseHostPort(text) === undefined).toBe(true) })
