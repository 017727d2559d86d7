import { createHook } from 'node:async_hooks'
import { expect, test } from 'vitest'
import { hashPassword, isPassword, isPasswordHash, verifyPassword } from '../../../../src/imds-api/auth/password.ts'

/** Of `correct horse`, made by Python's hashlib with a low cost. */
const FOREIGN = '$scrypt$ln=10,r=8,p=1$MDEyMzQ1Njc4OWFiY2RlZg$6g3umF+uVrJsObaTZhIbbTlgrvOEFcCItdwSjtPF67M'

test('a hash has its parameters and a salt, and only its own password is right', async () => {
  const hash = await hashPassword('correct horse')
  expect(hash).toMatch(/^\$scrypt\$ln=15,r=8,p=3\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}$/)
  expect(await hashPassword('correct horse')).not.toBe(hash)
  expect(await verifyPassword('correct horse', hash)).toBe(true)
  expect(await verifyPassword('correct horsf', hash)).toBe(false)
  expect(await verifyPassword('', hash)).toBe(false)
})

test('a hash of another program and with other parameters is checked', async () => {
  expect(await verifyPassword('correct horse', FOREIGN)).toBe(true)
  expect(await verifyPassword('Correct horse', FOREIGN)).toBe(false)
})

test('without a hash no password is right', async () => {
  for (const password of ['correct horse', '']) expect(await verifyPassword(password, undefined)).toBe(false)
})

test('an unknown user and a known one cost one computation of scrypt', async () => {
  let computations = 0
  const hook = createHook({
    init: (_id, type) => {
      if (type === 'SCRYPTREQUEST') computations++
    },
  }).enable()
  await verifyPassword('correct horse', undefined)
  expect(computations).toBe(1)
  await verifyPassword('correct horse', FOREIGN)
  hook.disable()
  expect(computations).toBe(2)
})

test.each<[string, string, boolean]>([
  ['a hash', FOREIGN, true],
  ['another scheme', FOREIGN.replace('scrypt', 'argon2id'), false],
  ['no parameters', FOREIGN.replace('ln=10,r=8,p=1$', ''), false],
  ['less memory than 1 MiB', FOREIGN.replace('ln=10', 'ln=9'), false],
  ['64 MiB', FOREIGN.replace('ln=10', 'ln=16'), true],
  ['more memory than 64 MiB', FOREIGN.replace('ln=10', 'ln=17'), false],
  ['more memory by r', FOREIGN.replace('ln=10,r=8', 'ln=16,r=9'), false],
  ['16 times the time', FOREIGN.replace('p=1', 'p=16'), true],
  ['more time', FOREIGN.replace('p=1', 'p=17'), false],
  ['a short key', FOREIGN.slice(0, -1), false],
  ['more after it', `${FOREIGN}\n`, false],
  ['an empty text', '', false],
])('a text with %s', (_what, text, isHash) => expect(isPasswordHash(text)).toBe(isHash))

test('a password has 8 to 72 characters, whatever their bytes are', () => {
  expect([7, 8, 72, 73].map((length) => isPassword('a'.repeat(length)))).toEqual([false, true, true, false])
  expect([7, 8, 72, 73].map((length) => isPassword('𝄞'.repeat(length)))).toEqual([false, true, true, false])
})
