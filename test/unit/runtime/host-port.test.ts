import { expect, test } from 'vitest'
import {
  formatHostPort,
  formatListenAddress,
  isLoopback,
  parseAddressPort,
  parseHostPort,
  parseUnixSocket,
} from '../../../src/runtime/host-port.ts'

test.each([
  ['10.0.0.1:80', '10.0.0.1', 80],
  ['localhost:0', 'localhost', 0],
  ['[fd00::1]:65535', 'fd00::1', 65_535],
  ['redis-1.example_x.com:6379', 'redis-1.example_x.com', 6379],
])('%s is read and written the same', (text, host, port) => {
  expect(parseHostPort(text)).toEqual({ host, port })
  expect(formatHostPort({ host, port })).toBe(text)
})

test.each([
  ['10.0.0.1', '10.0.0.1'],
  ['[fd00::1]', 'fd00::1'],
  ['r', 'r'],
])('the port of %s is left to the caller', (text, host) => {
  expect(parseHostPort(text)).toMatchObject({ host })
  expect(parseHostPort(text)?.port === undefined).toBe(true)
})

test.each([
  '',
  ':80',
  '10.0.0.1:',
  '10.0.0.1:65536',
  '10.0.0.1:999999',
  '10.0.0.1:-1',
  '10.0.0.1:8o',
  '10.0.0.1:80:90',
  'fd00::1',
  'fd00::1:80',
  '[fd00::1',
  'fd00::1]:80',
  '[fe80::1%eth0]:80',
  '[r]:80',
  'a b:80',
  'user@r:80',
  'r/0',
  'r:80\n',
  ' r:80',
  'é:80',
])('%j is no host with a port', (text) => expect(parseHostPort(text) === undefined).toBe(true))

test.each([
  ['127.0.0.1:80', '127.0.0.1', 80],
  ['[fd00:0::1]:0', 'fd00::1', 0],
  ['[::ffff:10.0.0.1]:1', '10.0.0.1', 1],
])('%s is an address with a port', (text, host, port) => expect(parseAddressPort(text)).toEqual({ host, port }))

test.each(['localhost:80', '127.0.0.1', '[::1]', '[127.0.0.1]:80', '::1:80', 'unix:/x'])(
  '%s is no address with a port',
  (text) => expect(parseAddressPort(text) === undefined).toBe(true),
)

test.each(['/run/x.sock', '/x', '/run/a:b, c', `/${'x'.repeat(106)}`])('unix:%s is a unix socket', (path) => {
  expect(parseUnixSocket(`unix:${path}`)).toEqual({ path })
  expect(formatListenAddress({ path })).toBe(`unix:${path}`)
})

test.each([
  '',
  'unix:',
  'unix:/',
  'unix:x',
  'unix:/run/',
  '/run/x',
  `unix:/${'x'.repeat(107)}`,
  `unix:/${'é'.repeat(54)}`,
])('%s is no unix socket', (text) => expect(parseUnixSocket(text) === undefined).toBe(true))

test('a place with an address is written as such', () => {
  expect(formatListenAddress({ host: '::1', port: 1 })).toBe('[::1]:1')
})

test.each([
  ['127.0.0.1', true],
  ['127.9.9.9', true],
  ['::1', true],
  ['10.127.0.1', false],
  ['0.0.0.0', false],
  ['::', false],
  ['::2', false],
])('%s is a loopback address: %s', (host, is) => expect(isLoopback(host)).toBe(is))
