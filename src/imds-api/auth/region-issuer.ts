/**
 * The issuer of the region's identity tokens (contract H4): hypervisors sign them, and this API publishes the keys (OpenID
 * Connect Discovery 1.0, 4).
 */
import { createPublicKey, type KeyObject } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { issuerDocuments, ISSUER_PATHS } from '../../identity/issuer-documents.ts'
import { algorithmOf } from '../../identity/key.ts'
import { StartFailure } from '../../runtime/listen.ts'
import { PEM_CERTIFICATE } from '../../runtime/setting-files.ts'
import { publicDocument } from '../http/public-document.ts'
import type { ApiServer } from '../http/server.ts'
import { ISSUER_PATH, type IssuerSettings } from './settings.ts'

/** How long verifiers may keep the documents. */
const MAX_AGE_SECONDS = 300

export type RegionIssuer = Awaited<ReturnType<typeof issuerDocuments>>

export async function readRegionIssuer({ url, certificateFile }: IssuerSettings): Promise<RegionIssuer> {
  const certificates = readFileSync(certificateFile, 'utf8').match(PEM_CERTIFICATE) ?? []
  return issuerDocuments(url, certificates.map(publicKeyOf))
}

export function addIssuerDocuments(server: ApiServer, issuer: RegionIssuer): void {
  for (const name of ['configuration', 'keys'] as const) {
    const send = publicDocument(() => issuer[name])
    server.get(`${ISSUER_PATH}/${ISSUER_PATHS[name]}`, { schema: { hide: true } }, (request, reply) =>
      send(request, reply.header('Cache-Control', `public, max-age=${MAX_AGE_SECONDS}`)),
    )
  }
}

function publicKeyOf(certificate: string): KeyObject {
  const key = createPublicKey(certificate)
  if (algorithmOf(key) === undefined)
    throw new StartFailure(
      'IMDS_API_IDENTITY_CERT_FILE has a certificate of a key that signs no identity tokens: they need RSA of 2048 to ' +
        '4096 bits, or the curve P-256',
    )
  return key
}
