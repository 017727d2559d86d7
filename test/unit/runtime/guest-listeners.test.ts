import { expect, test } from 'vitest'
import { DEFAULT_LISTEN, parseGuestListener, parseGuestListeners } from '../../../src/runtime/guest-listeners.ts'

test('each part has an address and a port, and may name its network', () => {
  expect(parseGuestListeners(DEFAULT_LISTEN)).toEqual([{ network: 'default', host: '169.254.169.254', port: 80 }])
  expect(parseGuestListeners(' red=10.0.0.1:80 ,, [FD00:0::1]:8080')).toEqual([
    { network: 'red', host: '10.0.0.1', port: 80 },
    { network: 'default', host: 'fd00::1', port: 8080 },
  ])
})

test('parts of another form are not read', () => {
  for (const part of ['', '10.0.0.1', 'x y=10.0.0.1:80', '=10.0.0.1:80', 'localhost:80'])
    expect(parseGuestListener(part)).toBeUndefined()
  expect(parseGuestListeners('10.0.0.1, localhost:80, 10.0.0.2:80')).toEqual([
    { network: 'default', host: '10.0.0.2', port: 80 },
  ])
})
