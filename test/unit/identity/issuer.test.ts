import { expect, test } from 'vitest'
import { isIssuer } from '../../../src/identity/issuer.ts'

test.each([
  ['https://id.example.com', true],
  ['https://id.example.com/gb1', true],
  ['https://id.example.com:8443/oidc/gb1', true],
  ['https://[2001:db8::1]/gb1', true],
  ['http://id.example.com', false],
  ['https://id.example.com/', false],
  ['https://id.example.com/gb1/', false],
  ['https://ID.example.com', false],
  ['https://id.example.com/a/../b', false],
  ['https://id.example.com/?a', false],
  ['https://id.example.com#a', false],
  ['https://ada:secret@id.example.com', false],
  ['https://', false],
  ['id.example.com', false],
  ['', false],
])('H4: "%s" is an issuer: %s', (text, expected) => expect(isIssuer(text)).toBe(expected))
