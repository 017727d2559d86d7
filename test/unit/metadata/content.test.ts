import { expect, test } from 'vitest'
import { buildContent, textContent } from '../../../src/metadata/content.ts'

test('H1: equal bytes have equal strong ETags, as text or as bytes, and others have others', () => {
  const [text, bytes] = [textContent('é'), buildContent(Buffer.from('é'), 'application/octet-stream')]
  expect(text.etag).toMatch(/^"[\w-]{22}"$/)
  expect(bytes.etag).toBe(text.etag)
  expect(textContent('e').etag).not.toBe(text.etag)
})

test('a known digest is the ETag', () => expect(buildContent(Buffer.from('x'), 'text/plain', 'abc').etag).toBe('"abc"'))

test('headers count bytes, and have the ETag', () => {
  const { body, headers, etag } = textContent('é', 'application/json')
  expect(body).toHaveLength(2)
  expect(headers).toEqual(['Content-Type', 'application/json', 'Content-Length', '2', 'ETag', etag])
})
