import { describe, expect, test } from 'vitest'
import { parseTotpSecret, splitCode, stepOfCode } from '../../../../src/imds-api/auth/one-time-password.ts'

/** The secret of RFC 6238's test vectors, in base32. */
const SECRET = 'GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ'

describe('the code of a user', () => {
  test.each<[string, string | undefined, string, string | undefined]>([
    ['correct horse', undefined, 'correct horse', undefined],
    ['correct horse', '123456', 'correct horse', '123456'],
    ['correct horse+123456', undefined, 'correct horse', '123456'],
    ['a+b+123456', undefined, 'a+b', '123456'],
    ['pw+111111+222222', undefined, 'pw+111111', '222222'],
    ['pw+111111+222222', '222222', 'pw+111111', '222222'],
    ['pw+111111', '222222', 'pw+111111', '222222'],
    ['pw++123456', undefined, 'pw+', '123456'],
    ['two\nlines+123456', undefined, 'two\nlines', '123456'],
    ['+123456', undefined, '', '123456'],
    ['pw+12345', undefined, 'pw+12345', undefined],
    ['pw+1234567', undefined, 'pw+1234567', undefined],
    ['pw+12345a', undefined, 'pw+12345a', undefined],
    ['pw+123456 ', undefined, 'pw+123456 ', undefined],
    ['pw+123456\n', undefined, 'pw+123456\n', undefined],
    ['pw+١٢٣٤٥٦', undefined, 'pw+١٢٣٤٥٦', undefined],
    ['123456', undefined, '123456', undefined],
  ])('of %j with the header %j', (password, header, rest, code) => {
    expect(splitCode(password, header)).toEqual({ password: rest, code })
  })

  test('any password and code come out as they went in', () => {
    for (let i = 0; i < 2000; i++) {
      const password = Array.from({ length: i % 20 }, (_, n) => '+1 a9\n+'[(i * 7 + n * (i % 11)) % 7]).join('')
      const code = String((i * 7919) % 1_000_000).padStart(6, '0')
      for (const header of [undefined, code])
        expect(splitCode(`${password}+${code}`, header)).toEqual({ password, code })
    }
  })
})

describe('the step of a code', () => {
  test.each([
    [59, '287082'],
    [1_111_111_109, '081804'],
    [1_111_111_111, '050471'],
    [1_234_567_890, '005924'],
    [2_000_000_000, '279037'],
    [20_000_000_000, '353130'],
  ])('RFC 6238 at %d s: %s', (seconds, code) => {
    expect(stepOfCode(SECRET, code, seconds * 1000)).toBe(Math.floor(seconds / 30))
  })

  test('a code is right from 30 s before its step to 30 s after it', () => {
    const [code, begin] = ['081804', 1_111_111_080_000]
    const step = begin / 30_000
    expect([-30_001, -30_000, 0, 29_999, 59_999, 60_000].map((ms) => stepOfCode(SECRET, code, begin + ms))).toEqual([
      undefined,
      step,
      step,
      step,
      step,
      undefined,
    ])
  })

  test.each(['', '081805', '81804', '0081804', ' 081804', '081804 ', '081 804', '08180४', 'abcdef'])(
    '%j is wrong',
    (code) => expect(stepOfCode(SECRET, code, 1_111_111_109_000)).toBeUndefined(),
  )
})

test.each<[string, string | undefined]>([
  [SECRET, SECRET],
  ['gezd gnbv gy3t qojq\n', 'GEZDGNBVGY3TQOJQ'],
  ['GEZDGNBVGY3TQOJQGEZDGNBVGE======', 'GEZDGNBVGY3TQOJQGEZDGNBVGE'],
  ['GEZDGNBVGY3TQOJ', undefined],
  ['GEZDGNBVGY3TQOJQG', undefined],
  ['GEZDGNBVGY3TQOJ1', undefined],
  ['', undefined],
  ['A'.repeat(136), undefined],
])('the secret %j', (text, secret) => expect(parseTotpSecret(text)).toBe(secret))
