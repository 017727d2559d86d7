/**
 * Certificates for Redis, made by openssl: an authority and certificates for 127.0.0.1.
 */
import { must } from '../programs/processes.ts'

/** A certificate and its private key, by path. */
export interface Certificate { readonly certFile: string, readonly keyFile: string }
/** An authority; clients that trust it use `caFile`. */
export interface Authority {
  readonly caFile: string
  /** A certificate for 127.0.0.1 with the name `name`; `days` below 0 makes one that is out of date. */
  issue(name: string, days?: number): Promise<Certificate>
}

const KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes']

/** Makes an authority, whose files are in `directory` and begin with `name`. */
export async function anAuthority(directory: string, name: string): Promise<Authority> {
  const at = (file: string) => `${directory}/${name}-${file}`
  await must(['openssl', 'req', '-x509', ...KEY, '-keyout', at('ca.key'), '-out', at('ca.pem'), '-days', '2', '-subj', `/CN=${name}`])
  return {
    caFile: at('ca.pem'),
    issue: async (subject, days = 2) => {
      const [certFile, keyFile, request] = [at(`${subject}.pem`), at(`${subject}.key`), at(`${subject}.csr`)]
      await must(['openssl', 'req', ...KEY, '-keyout', keyFile, '-out', request, '-subj', `/CN=${subject}`, '-addext', 'subjectAltName=IP:127.0.0.1'])
      await must(['openssl', 'x509', '-req', '-in', request, '-copy_extensions', 'copy', '-CA', at('ca.pem'), '-CAkey', at('ca.key'), '-days', String(days), '-out', certFile])
      return { certFile, keyFile }
    },
  }
}
