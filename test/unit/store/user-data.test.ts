import { expect, test } from 'vitest'
import { fillUserData } from '../../../src/store/user-data.ts'

test('a document that lacks a description of its user-data gets one, in a copy', () => {
  const document = Object.freeze({ id: 'srv-a' })
  expect(fillUserData(document, Buffer.from('abc'), 'd1')).toEqual({ id: 'srv-a', userData: { size: 3, sha256: 'd1' } })
  expect(fillUserData(document, Buffer.alloc(0), 'd0')).toEqual({ id: 'srv-a', userData: { size: 0, sha256: 'd0' } })
})

test('a description that is there stays, right or wrong: the check reports a wrong one', () => {
  for (const document of [{ userData: { size: 7, sha256: 'x' } }, { userData: null }, { userData: undefined }])
    expect(fillUserData(document, Buffer.from('abc'), 'd1')).toBe(document)
})

test('without user-data nothing is added', () => {
  const document = { id: 'srv-a' }
  expect(fillUserData(document, undefined, undefined)).toBe(document)
})

test.each([null, undefined, 'x', 7, true])('%j is no document, and stays as it is', (document) => {
  expect(fillUserData(document, Buffer.from('abc'), 'd1')).toBe(document)
})

test('a list stays a list', () => {
  const list = ['x']
  expect(fillUserData(list, Buffer.from('abc'), 'd1')).toBe(list)
})
