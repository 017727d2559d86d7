import { expect, test } from 'vitest'
import { digest } from '../../../../src/imds-api/auth/secrets.ts'
import type { RegionFile } from '../../../../src/imds-api/region/schema.ts'
import { loadSecrets } from '../../../../src/imds-api/region/secrets.ts'
import { decodeText } from '../../../../src/runtime/text-file.ts'
import { ADA, APPLICATION, aRegion, CLIENT_OF, ONE, TOTP_SECRET, withFiles } from '../../../support/fixtures/region.ts'

const [ada, grace] = aRegion().users as [RegionFile['users'][number], RegionFile['users'][number]]
const REGION = aRegion({
  users: [withFiles(ada, 'password', 'totp'), grace],
  api_clients: [{ id: CLIENT_OF[ONE], account: ONE, name: '', secret_file: 'secret' }],
  applications: [{ id: APPLICATION, account: ONE, name: '', secret_file: 'app' }],
})
const TEXTS: Readonly<Record<string, string>> = {
  password: ' correct horse \n',
  totp: 'gezd gnbv gy3t qojq gezd gnbv gy3t qojq\n',
  secret: 'the-secret-of-client!\n',
  app: '~'.repeat(35),
}

function load(change: Readonly<Record<string, string | undefined>> = {}) {
  return loadSecrets(REGION, (file) => {
    const text = { ...TEXTS, ...change }[file]
    if (text === undefined) throw new Error(`no ${file}`)
    return text
  })
}

test('each secret comes from its file: without the end of the line, a password with its spaces', () => {
  expect(load()).toEqual({
    ok: true,
    value: {
      digests: new Map([
        [CLIENT_OF[ONE], digest('the-secret-of-client!')],
        [APPLICATION, digest('~'.repeat(35))],
      ]),
      passwords: new Map([[ADA, ' correct horse ']]),
      totpSecrets: new Map([[ADA, TOTP_SECRET]]),
    },
  })
  expect(load({ password: 'correct horse\r\n' })).toMatchObject({
    value: { passwords: new Map([[ADA, 'correct horse']]) },
  })
})

test('only files that are named are read', () => {
  expect(
    loadSecrets(aRegion({ users: [ada, grace], api_clients: [] }), () => {
      throw new Error('read')
    }),
  ).toMatchObject({ ok: true })
})

const SECRET_FORM = 'must have a secret of 20 to 35 printable ASCII characters without spaces in its only line'

test.each([
  ['a short one', 'x'.repeat(19)],
  ['a long one', 'x'.repeat(36)],
  ['a space', 'the secret of a client'],
  ['another script', 'the-secret-of-client-ü'],
  ['two lines', 'the-secret-of-\nclient!'],
])('a secret that clients cannot send or that is easy to guess is a fault: %s', (_what, secret) => {
  expect(load({ secret })).toEqual({ ok: false, faults: [`${CLIENT_OF[ONE]}: secret ${SECRET_FORM}`] })
})

const PASSWORD_FAULT = `${ADA}: password must have a password of 8 to 72 characters in its only line`
const TOTP_FAULT = `${ADA}: totp must have a secret in base32 with 16 to 128 characters`

test.each<[string, Readonly<Record<string, string | undefined>>, readonly string[]]>([
  ['a short password', { password: '1234567\n' }, [PASSWORD_FAULT]],
  ['a long password', { password: 'a'.repeat(73) }, [PASSWORD_FAULT]],
  ['a password on two lines', { password: 'correct\nhorse\n' }, [PASSWORD_FAULT]],
  ['a TOTP secret that is not base32', { totp: 'GEZDGNBVGY3TQOJ0' }, [TOTP_FAULT]],
  [
    'everything, all at once',
    { password: '', totp: '', secret: ' \n', app: undefined },
    [`${CLIENT_OF[ONE]}: secret ${SECRET_FORM}`, `${APPLICATION}: app cannot be read`, PASSWORD_FAULT, TOTP_FAULT],
  ],
])('%s is a fault', (_what, change, faults) => expect(load(change)).toEqual({ ok: false, faults }))

test('no fault has a secret in it', () => {
  expect(JSON.stringify(load({ password: 'horse', totp: 'GEZDGNBV' }))).not.toMatch(/horse|GEZD/)
})

test('a file of a secret that is not UTF-8 is a fault that says so', () => {
  const loaded = loadSecrets(REGION, (file) =>
    decodeText(Buffer.from(file === 'password' ? 'p\xe4ssword' : TEXTS[file]!, 'latin1')),
  )
  expect(loaded).toEqual({
    ok: false,
    faults: [`${ADA}: password cannot be read: it is not UTF-8: the byte at offset 1 is wrong`],
  })
})
