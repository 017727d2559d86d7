import { createPrivateKey, sign, X509Certificate } from 'node:crypto'
import { rmSync } from 'node:fs'
import { Constructed, fromBER, type BaseBlock } from 'asn1js'
import { expect, test } from 'vitest'
import { signedData, signerNameOf } from '../../../src/identity/cms.ts'
import { makeIdentity } from '../../support/fixtures/identity.ts'

const files = makeIdentity()
rmSync(files.directory, { recursive: true })
const certificate = new X509Certificate(files.certificate)

const partsOf = (block: BaseBlock | undefined) => (block instanceof Constructed ? block.valueBlock.value : [])

test('H3: a SignedData has the document, its signature and no signed attributes, which the key never signs', () => {
  const document = Buffer.from('{ "a" : 1 }')
  const signature = sign('sha256', document, createPrivateKey(files.key))
  const bytes = Buffer.from(signedData(signerNameOf(certificate), document, signature))
  expect([bytes.includes(document), bytes.includes(signature)]).toEqual([true, true])
  const [, content] = partsOf(fromBER(bytes).result)
  const signers = partsOf(partsOf(content)[0]).at(-1)
  // version, signer, digest, algorithm, signature; attributes would be tagged
  expect(partsOf(partsOf(signers)[0]).map(({ idBlock: { tagNumber } }) => tagNumber)).toEqual([2, 16, 16, 16, 4])
})

test('H3: the signer is the issuer and the serial number of the certificate, in their own bytes', () => {
  const parts = signerNameOf(certificate).valueBlock.value.map((part) => Buffer.from(part.toBER()))
  expect(parts.map((part) => certificate.raw.includes(part))).toEqual([true, true])
  expect(parts[0]!.toString('latin1')).toMatch(/Example[^]*gb1 identity/)
  expect(parts[1]!.toString('hex')).toContain(certificate.serialNumber.toLowerCase())
})
