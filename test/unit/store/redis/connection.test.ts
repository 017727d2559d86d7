import { expect, test } from 'vitest'
import { describeUrl, redirection } from '../../../../src/store/redis/connection.ts'

test('invariant 9: a URL is described without its password', () => {
  expect(describeUrl('rediss://imds:secret@r:1')).toBe('rediss://imds:***@r:1')
  expect(describeUrl('redis-sentinel://:secret@a,b/main')).toBe('redis-sentinel://:***@a,b/main')
  expect(describeUrl('redis-cluster://imds@a:1,b:2')).toBe('redis-cluster://imds@a:1,b:2')
})

test('a redirection names a node, by name, by address, or the one that answered', () => {
  const from = { host: '10.0.0.1', port: 1 }
  expect(redirection('MOVED', new Error('MOVED 3999 10.0.0.2:6381'), from)).toEqual({ host: '10.0.0.2', port: 6381 })
  expect(redirection('MOVED', new Error('MOVED 3999 fd00::1:6381'), from)).toEqual({ host: 'fd00::1', port: 6381 })
  expect(redirection('ASK', new Error('ASK 3999 :6381'), from)).toEqual({ host: '10.0.0.1', port: 6381 })
  expect(redirection('ASK', new Error('MOVED 3999 n2:6381'), from)).toBeUndefined()
  expect(redirection('MOVED', 'MOVED 3999 n2:6381', from)).toBeUndefined()
})
