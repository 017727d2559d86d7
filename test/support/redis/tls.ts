/** Certificates for tests of Redis over TLS, made by openssl. */
import { must } from '../programs/processes.ts'

/** The paths of a certificate and its private key. */
export interface Certificate {
  readonly certFile: string
  readonly keyFile: string
}
/** A certificate authority. */
export interface Authority {
  readonly caFile: string
  /** Issues a certificate for 127.0.0.1 with the common name `name`. With negative `days` it has expired. */
  issue(name: string, days?: number): Promise<Certificate>
}

const KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes']

/** Makes a certificate authority. Its files are in `directory`, and their names begin with `name`. */
export async function anAuthority(directory: string, name: string): Promise<Authority> {
  const at = (file: string) => `${directory}/${name}-${file}`
  await must([
    'openssl',
    'req',
    '-x509',
    ...KEY,
    '-keyout',
    at('ca.key'),
    '-out',
    at('ca.pem'),
    '-days',
    '2',
    '-subj',
    `/CN=${name}`,
  ])
  return {
    caFile: at('ca.pem'),
    issue: async (subject, days = 2) => {
      const [certFile, keyFile, request] = [at(`${subject}.pem`), at(`${subject}.key`), at(`${subject}.csr`)]
      await must([
        'openssl',
        'req',
        ...KEY,
        '-keyout',
        keyFile,
        '-out',
        request,
        '-subj',
        `/CN=${subject}`,
        '-addext',
        'subjectAltName=IP:127.0.0.1',
      ])
      await must([
        'openssl',
        'x509',
        '-req',
        '-in',
        request,
        '-copy_extensions',
        'copy',
        '-CA',
        at('ca.pem'),
        '-CAkey',
        at('ca.key'),
        '-days',
        String(days),
        '-out',
        certFile,
      ])
      return { certFile, keyFile }
    },
  }
}
