import { expect, test } from 'vitest'
import { maxConnections, maxOperatorConnections } from '../../../src/runtime/listen.ts'

const limits = (soft: string) => `Limit                     Soft Limit           Hard Limit           Units     
Max processes             385                  386                  processes 
Max open files            ${soft.padEnd(20)} 524288               files     
`

test('guest connections leave 256 file descriptors, or half if there are few, and share the rest', () => {
  expect([1, 2, 3].map((listeners) => maxConnections(limits('65536'), listeners))).toEqual([65_280, 32_640, 21_760])
  expect(maxConnections(limits('100'), 1)).toBe(50)
  expect(maxConnections(limits('100'), 1000)).toBe(1)
})

test('each listener of operators has 64 connections, or an eighth of the descriptors if there are few', () => {
  expect(['65536', '512', '300', '4'].map((soft) => maxOperatorConnections(limits(soft)))).toEqual([64, 64, 37, 1])
  expect([maxOperatorConnections(''), maxOperatorConnections(limits('unlimited'))]).toEqual([64, 64])
})

test('if the system does not report a limit of file descriptors, there is none', () => {
  expect([maxConnections('', 1), maxConnections(limits('unlimited'), 1)]).toEqual([Infinity, Infinity])
})
