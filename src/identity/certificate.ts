/**
 * Makes a self-signed certificate (RFC 5280, 4.1), which Node cannot make. Its name has its serial number, so verifiers
 * that trust the certificates of several hypervisors find the right one.
 */
import { BitString, Boolean as Asn1Boolean, Constructed, fromBER, Integer, Null } from 'asn1js'
import { ObjectIdentifier, OctetString, Sequence, Set as Asn1Set, UTCTime, Utf8String } from 'asn1js'
import { createPublicKey, randomBytes, sign, type KeyObject } from 'node:crypto'
import { algorithmOf } from './key.ts'

/** How long a certificate is valid. */
const YEARS = 10

const OID = {
  rsaWithSha256: '1.2.840.113549.1.1.11',
  ecdsaWithSha256: '1.2.840.10045.4.3.2',
  commonName: '2.5.4.3',
  keyUsage: '2.5.29.15',
  basicConstraints: '2.5.29.19',
}

/** A certificate of a private key in PEM, valid from a time (milliseconds since 1970). */
export function makeCertificate(key: KeyObject, nowMs: number): string {
  const serialNumber = randomBytes(16)
  serialNumber[0] = (serialNumber[0]! & 0x3f) | 0x40 // positive, and of full length
  const name = nameOf(`imds identity ${serialNumber.toString('hex')}`)
  const publicKey = createPublicKey(key).export({ type: 'spki', format: 'der' })
  const until = new Date(nowMs)
  until.setUTCFullYear(until.getUTCFullYear() + YEARS)
  const signed = new Sequence({
    value: [
      explicit(0, new Integer({ value: 2 })), // version 3
      new Integer({ valueHex: serialNumber }),
      signatureAlgorithm(key),
      name,
      new Sequence({ value: [new UTCTime({ valueDate: new Date(nowMs) }), new UTCTime({ valueDate: until })] }),
      name,
      fromBER(publicKey).result,
      explicit(3, extensions()),
    ],
  })
  const signature = sign('sha256', new Uint8Array(signed.toBER()), key)
  const certificate = new Sequence({ value: [signed, signatureAlgorithm(key), new BitString({ valueHex: signature })] })
  const lines = Buffer.from(certificate.toBER())
    .toString('base64')
    .replace(/.{64}(?!$)/g, '$&\n')
  return `-----BEGIN CERTIFICATE-----\n${lines}\n-----END CERTIFICATE-----\n`
}

/** It is no authority, and its key only makes signatures. */
function extensions(): Sequence {
  const digitalSignature = new BitString({ valueHex: Uint8Array.of(0x80), unusedBits: 7 })
  return new Sequence({
    value: [extension(OID.basicConstraints, new Sequence({ value: [] })), extension(OID.keyUsage, digitalSignature)],
  })
}

function extension(id: string, value: Sequence | BitString): Sequence {
  const critical = new Asn1Boolean({ value: true })
  return new Sequence({
    value: [new ObjectIdentifier({ value: id }), critical, new OctetString({ valueHex: value.toBER() })],
  })
}

function nameOf(commonName: string): Sequence {
  const attribute = [new ObjectIdentifier({ value: OID.commonName }), new Utf8String({ value: commonName })]
  return new Sequence({ value: [new Asn1Set({ value: [new Sequence({ value: attribute })] })] })
}

function signatureAlgorithm(key: KeyObject): Sequence {
  return algorithmOf(key) === 'RS256'
    ? new Sequence({ value: [new ObjectIdentifier({ value: OID.rsaWithSha256 }), new Null()] })
    : new Sequence({ value: [new ObjectIdentifier({ value: OID.ecdsaWithSha256 })] })
}

function explicit(tagNumber: number, value: Integer | Sequence): Constructed {
  return new Constructed({ idBlock: { tagClass: 3, tagNumber }, value: [value] })
}
