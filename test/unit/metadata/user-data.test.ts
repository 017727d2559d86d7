import { describe, expect, test } from 'vitest'
import { formatTooLong, sha256, userDataFaults } from '../../../src/metadata/user-data.ts'
import { parsed } from '../../support/fixtures/guest-server.ts'
import { anInstance } from '../../support/fixtures/instance.ts'

const BYTES = Buffer.from([0, 0xff, 10])
const DIGEST = sha256(BYTES)
const describing = (size: number, digest = DIGEST) => parsed(anInstance({ userData: { size, sha256: digest } }))
const plain = parsed(anInstance())

test('a digest is SHA-256 in lower-case hexadecimal', () => {
  expect(sha256(Buffer.from('abc'))).toBe('ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad')
})

test('user-data that its record describes has no fault, up to the limit', () => {
  expect(userDataFaults(describing(3), BYTES, DIGEST, 3)).toEqual([])
  expect(userDataFaults(describing(0, sha256(Buffer.alloc(0))), Buffer.alloc(0), sha256(Buffer.alloc(0)), 0)).toEqual(
    [],
  )
})

describe('user-data is a fault', () => {
  test.each<[string, ReturnType<typeof userDataFaults>, string, string]>([
    [
      'that the record does not describe',
      userDataFaults(plain, BYTES, DIGEST, 16_384),
      '/userData',
      'is missing, although the instance has user-data',
    ],
    [
      'that is longer than the limit',
      userDataFaults(describing(3), BYTES, DIGEST, 2),
      '/userData',
      'is 3 bytes, more than the limit of 2 (IMDS_USER_DATA_MAX_BYTES)',
    ],
    [
      'of another size',
      userDataFaults(describing(4), BYTES, DIGEST, 16_384),
      '/userData/size',
      'does not match the 3 bytes of the user-data',
    ],
    [
      'with another digest',
      userDataFaults(describing(3, sha256(Buffer.from('xyz'))), BYTES, DIGEST, 16_384),
      '/userData/sha256',
      'is not the digest of the user-data',
    ],
  ])('%s', (_what, faults, path, message) => expect(faults).toEqual([{ path, message }]))
})

test('the text of a fault names the variable that sets the limit', () => {
  expect(formatTooLong(16_385, 16_384)).toBe('16385 bytes, more than the limit of 16384 (IMDS_USER_DATA_MAX_BYTES)')
})
