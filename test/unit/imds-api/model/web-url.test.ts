import { expect, test } from 'vitest'
import { faultOfWebUrl } from '../../../../src/imds-api/model/web-url.ts'

test.each(['http://127.0.0.1:8170', 'https://api.gb1.example.com/', 'HTTPS://[2001:db8::1]:443/a/@b?c=d#e'])(
  '%s is a URL',
  (text) => expect(faultOfWebUrl(text)).toBeUndefined(),
)

test.each([
  '',
  'api.example.com',
  'https:api.example.com',
  'https:///api.example.com',
  'https:\\\\api.example.com',
  'https://api.exam\tple.com',
  'https://a b',
  'ftp://a',
  'javascript:alert(1)',
  'https://a:99999',
])('%j is no URL of a page', (text) => expect(faultOfWebUrl(text)).toBe('form'))

test.each(['https://ada:secret@a', 'https://ada@a', 'https://:secret@a'])('%s has credentials', (text) => {
  expect(faultOfWebUrl(text)).toBe('credentials')
})
