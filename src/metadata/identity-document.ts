/**
 * The identity document of an instance and its signatures (contract H3): the content of `dynamic/instance-identity/`.
 *
 * The document has those fields of EC2's whose values the record has, in EC2's layout. Equal records give equal bytes,
 * since verifiers compare them. It needs no key: programs read the region and the account there. With a key, it is signed
 * at the first request for a signature, once for each state of the record (and again after a guest was silent for hours:
 * imdsd/view/served-instance.ts).
 */
import { splitPrefix } from './address.ts'
import { textContent, type Content } from './content.ts'
import type { Instance } from './instance.ts'

/** The signatures of a document, in the forms of EC2. */
export interface Signatures {
  /** RSA with SHA-256 over the bytes of the document, in base64. */
  readonly signature: string
  /** The same signature with the document as SignedData of PKCS#7, in base64 without the lines of PEM. */
  readonly pkcs7: string
}

/** Signs documents of instances. `sign` does its work outside of the event loop. */
export interface DocumentSigner {
  sign(document: string, id: string): Promise<Signatures>
}

/** The leaves of `dynamic/instance-identity/` that need a key. `pkcs7` and `rsa2048` are the same. */
export const SIGNATURE_LEAVES = ['pkcs7', 'rsa2048', 'signature'] as const
/** All of them, in the order of the listing. */
const LEAVES = ['document', ...SIGNATURE_LEAVES] as const
type IdentityLeaf = (typeof LEAVES)[number]

/** A document, with its signatures once they are made. `signer` undefined: it has none. */
export class IdentityDocument {
  readonly #instance: Instance
  readonly #signer: DocumentSigner | undefined
  #document: Content | undefined
  #signatures: Readonly<Record<Exclude<IdentityLeaf, 'document'>, Content>> | undefined
  #signing: Promise<void> | undefined

  constructor(instance: Instance, signer: DocumentSigner | undefined) {
    this.#instance = instance
    this.#signer = signer
  }

  get leaves(): readonly IdentityLeaf[] {
    return this.#signer === undefined ? ['document'] : LEAVES
  }

  /** Signs the document; undefined: there is nothing to sign, or it is signed. After a failure the next call tries again. */
  prepare(): Promise<void> | undefined {
    if (this.#signer === undefined || this.#signatures !== undefined) return undefined
    return (this.#signing ??= this.#sign(this.#signer).finally(() => {
      this.#signing = undefined
    }))
  }

  /** The content of a leaf. Throws for a signature before `prepare` is done. */
  content(leaf: IdentityLeaf): Content {
    if (leaf === 'document') return (this.#document ??= textContent(formatIdentityDocument(this.#instance)))
    if (this.#signatures === undefined) throw new Error('the identity document is not signed yet')
    return this.#signatures[leaf]
  }

  async #sign(signer: DocumentSigner): Promise<void> {
    const { signature, pkcs7 } = await signer.sign(formatIdentityDocument(this.#instance), this.#instance.id)
    const signedData = textContent(pkcs7)
    this.#signatures = { pkcs7: signedData, rsa2048: signedData, signature: textContent(signature) }
  }
}

/** The text of the document. A field without a value is left out: clients refuse an empty time. */
export function formatIdentityDocument(instance: Instance): string {
  const { account, architecture, zone, image, id, serverType, launchTime, interfaces, region } = instance
  const [privateIp] = interfaces[0]?.ipv4Addresses ?? []
  const fields = {
    accountId: account,
    architecture,
    availabilityZone: zone.handle,
    imageId: image,
    instanceId: id,
    instanceType: serverType.handle,
    pendingTime: launchTime && new Date(launchTime).toISOString().replace(/\.\d+Z$/, 'Z'),
    privateIp: privateIp && splitPrefix(privateIp).address,
    region,
    version: '2017-09-30',
  }
  const lines = Object.entries(fields)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `  ${JSON.stringify(name)} : ${JSON.stringify(value)}`)
  return `{\n${lines.join(',\n')}\n}`
}
