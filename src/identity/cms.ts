/**
 * Writes SignedData of PKCS#7 (RFC 5652, 5; contract H3) around a document and its signature.
 *
 * It has no signed attributes, so the signature is over the document itself, the same one as in the leaf `signature`:
 * one operation with the key serves both, and equal documents give equal bytes. It has no certificate, like EC2's: a
 * verifier has to know it. The key signs documents, which begin with `{`, and tokens, which begin with `e`, and never
 * the attributes of a SignedData, so neither can be taken for the other.
 */
import { Constructed, fromBER, Integer, Null, ObjectIdentifier, OctetString, Sequence } from 'asn1js'
import { Set as Asn1Set, type BaseBlock } from 'asn1js'
import type { X509Certificate } from 'node:crypto'

const OID = {
  data: '1.2.840.113549.1.7.1',
  signedData: '1.2.840.113549.1.7.2',
  sha256: '2.16.840.1.101.3.4.2.1',
  rsaEncryption: '1.2.840.113549.1.1.1',
}

/** The issuer and the serial number of a certificate: how SignedData names its signer. */
export function signerNameOf(certificate: X509Certificate): Sequence {
  const [fields] = partsOf(fromBER(certificate.raw).result)
  // [0] EXPLICIT version, if it is not 1; serialNumber, signature, issuer (RFC 5280, 4.1)
  const [serialNumber, , issuer] = partsOf(fields).filter(({ idBlock: { tagClass } }) => tagClass === 1)
  return new Sequence({ value: [issuer!, serialNumber!] })
}

/** The SignedData of a document that is signed by RSA with SHA-256, in DER. */
export function signedData(signer: Sequence, document: Uint8Array, signature: Uint8Array): Uint8Array {
  const version = () => new Integer({ value: 1 })
  const sha256 = () => new Sequence({ value: [oid(OID.sha256)] })
  const signerInfo = new Sequence({
    value: [
      version(),
      signer,
      sha256(),
      new Sequence({ value: [oid(OID.rsaEncryption), new Null()] }),
      new OctetString({ valueHex: signature }),
    ],
  })
  const content = new Sequence({
    value: [
      version(),
      new Asn1Set({ value: [sha256()] }),
      new Sequence({ value: [oid(OID.data), explicit(new OctetString({ valueHex: document }))] }),
      new Asn1Set({ value: [signerInfo] }),
    ],
  })
  return new Uint8Array(new Sequence({ value: [oid(OID.signedData), explicit(content)] }).toBER())
}

function partsOf(block: BaseBlock | undefined): readonly BaseBlock[] {
  return block instanceof Constructed ? block.valueBlock.value : []
}

function oid(value: string): ObjectIdentifier {
  return new ObjectIdentifier({ value })
}

/** [0] EXPLICIT */
function explicit(value: Sequence | OctetString): Constructed {
  return new Constructed({ idBlock: { tagClass: 3, tagNumber: 0 }, value: [value] })
}
