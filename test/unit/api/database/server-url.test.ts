import { expect, test } from 'vitest'
import { parseServerUrl } from '../../../../src/api/database/server-url.ts'

test.each([
  ['postgres://u@h/d', ['postgres://u@h/d'], 'any'],
  ['postgres://u@/d?host=/run/pg', ['postgres://u@/d?host=/run/pg'], 'any'],
  ['postgresql://u@[::1]:1/d?sslmode=disable', ['postgresql://u@[::1]:1/d?sslmode=disable'], 'any'],
  ['postgres://u@a:1,b/d', ['postgres://u@a:1/d', 'postgres://u@b/d'], 'read-write'],
  [
    'postgres://%2Frun%2Fa:1,%2Frun%2Fb/d?target_session_attrs=primary',
    ['postgres://%2Frun%2Fa:1/d?target_session_attrs=primary', 'postgres://%2Frun%2Fb/d?target_session_attrs=primary'],
    'primary',
  ],
])('%s names each server', (text, servers, session) => {
  expect(parseServerUrl(text)).toEqual({ ok: true, value: { servers, session } })
})
