import { expect, test } from 'vitest'
import { maxConnections } from '../../../src/runtime/listen.ts'

const limits = (soft: string) => `Limit                     Soft Limit           Hard Limit           Units     
Max processes             385                  386                  processes 
Max open files            ${soft.padEnd(20)} 524288               files     
`

test('guest connections leave 128 file descriptors, or half if there are few, and share the rest', () => {
  expect([1, 2, 3].map((listeners) => maxConnections(limits('65536'), listeners))).toEqual([65_408, 32_704, 21_802])
  expect(maxConnections(limits('100'), 1)).toBe(50)
  expect(maxConnections(limits('100'), 1000)).toBe(1)
})

test('if the system does not report a limit of file descriptors, there is none', () => {
  expect([maxConnections('', 1), maxConnections(limits('unlimited'), 1)]).toEqual([Infinity, Infinity])
})
