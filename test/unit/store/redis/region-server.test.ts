import { expect, test } from 'vitest'
import { redirection } from '../../../../src/store/redis/region-server.ts'

test('a redirection names a node, by name, by address, or the one that answered', () => {
  const from = { host: '10.0.0.1', port: 1 }
  expect(redirection('MOVED', new Error('MOVED 3999 10.0.0.2:6381'), from)).toEqual({ host: '10.0.0.2', port: 6381 })
  expect(redirection('MOVED', new Error('MOVED 3999 fd00::1:6381'), from)).toEqual({ host: 'fd00::1', port: 6381 })
  expect(redirection('ASK', new Error('ASK 3999 :6381'), from)).toEqual({ host: '10.0.0.1', port: 6381 })
  expect(redirection('ASK', new Error('MOVED 3999 n2:6381'), from)).toBeUndefined()
  expect(redirection('MOVED', 'MOVED 3999 n2:6381', from)).toBeUndefined()
})
