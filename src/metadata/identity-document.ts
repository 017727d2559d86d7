/**
 * The identity document of an instance and its signatures (contract H3): the content of `dynamic/instance-identity/`.
 *
 * The document has those fields of EC2's whose values the record has, in EC2's layout. Equal records give equal bytes,
 * since verifiers compare them. It is signed at the first request for it, once for each state of the record (and again
 * after a guest was silent for hours: view/view.ts).
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

/** Signs documents. `sign` does its work outside of the event loop. */
export interface DocumentSigner {
  sign(document: string): Promise<Signatures>
}

/** The leaves of `dynamic/instance-identity/`, in the order of the listing. `pkcs7` and `rsa2048` are the same. */
export const IDENTITY_LEAVES = ['document', 'pkcs7', 'rsa2048', 'signature'] as const

/** A document, with its signatures once they are made. */
export class SignedDocument {
  readonly #text: string
  readonly #signer: DocumentSigner
  #contents: Readonly<Record<(typeof IDENTITY_LEAVES)[number], Content>> | undefined
  #signing: Promise<void> | undefined

  constructor(instance: Instance, signer: DocumentSigner) {
    this.#text = formatIdentityDocument(instance)
    this.#signer = signer
  }

  /** Signs the document; undefined: it is signed. After a failure the next call tries again. */
  prepare(): Promise<void> | undefined {
    if (this.#contents !== undefined) return undefined
    return (this.#signing ??= this.#sign().finally(() => {
      this.#signing = undefined
    }))
  }

  /** The content of a leaf. Throws before `prepare` is done. */
  content(leaf: (typeof IDENTITY_LEAVES)[number]): Content {
    if (this.#contents === undefined) throw new Error('the identity document is not signed yet')
    return this.#contents[leaf]
  }

  async #sign(): Promise<void> {
    const { signature, pkcs7 } = await this.#signer.sign(this.#text)
    const signedData = textContent(pkcs7)
    this.#contents = {
      document: textContent(this.#text),
      pkcs7: signedData,
      rsa2048: signedData,
      signature: textContent(signature),
    }
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
