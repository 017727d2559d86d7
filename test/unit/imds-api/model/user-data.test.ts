import { expect, test } from 'vitest'
import { compactUserData, decodeUserData, userDataFault } from '../../../../src/imds-api/model/user-data.ts'

const base64 = (bytes: number) => Buffer.alloc(bytes, 'x').toString('base64')

test.each(['', 'YQ==', 'YQ', 'YWI=', 'YWI', 'YWJj', 'YW\r\nJj\n', ' YWJj ', '+/+/', base64(16_384)])(
  '%j is taken',
  (text) => expect(userDataFault(text)).toBeUndefined(),
)

test.each(['Y', 'YQ=', 'YWJjY', '=', 'YQ==YQ==', 'a-_-_', 'ü', 'YQ==\0'])('%j is not base64', (text) => {
  expect(userDataFault(text)).toMatchObject({
    field: 'user_data',
    code: 'malformed',
    message: 'user_data must be base64',
  })
})

test('the limit counts decoded bytes', () => {
  expect(userDataFault(base64(16_385))).toMatchObject({
    code: 'too_long',
    message: 'user_data must be at most 16384 bytes; it is 16385',
  })
  expect(userDataFault(base64(16_384).replaceAll(/.{4}/g, '$&\n'))).toBeUndefined()
})

test('the guest gets the decoded bytes, without the line breaks of the text', () => {
  expect(decodeUserData('IyEv\nYmluL3No\n').toString()).toBe('#!/bin/sh')
})

test('what is kept has no white space, and the same bytes', () => {
  const text = 'IyEv\nYmlu\r\n\tL3No \n'
  expect(compactUserData(text)).toBe('IyEvYmluL3No')
  expect(decodeUserData(compactUserData(text))).toEqual(decodeUserData(text))
})
