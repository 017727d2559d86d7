/** The settings of the compute interface, from the environment. Pure. */
import { formatPlace, isLoopback, parseAddressPort, parseUnixSocket, type Place } from '../../runtime/host-port.ts'
import { parseWhole, wholeFault } from '../../runtime/whole-number.ts'

/**
 * Where hypervisors reach the compute interface. `tls`: files; undefined: only this host can connect. `retrySeconds`:
 * after this time without an outcome, an action is given out again.
 */
export interface ComputeListener {
  readonly listen: Place
  readonly tls: { readonly certificate: string; readonly key: string; readonly clientCa: string } | undefined
  readonly retrySeconds: number
}

/** The variables, with their defaults. */
export const COMPUTE_SETTINGS = {
  IMDS_API_COMPUTE_LISTEN: '127.0.0.1:8171',
  IMDS_API_COMPUTE_TLS_CERT_FILE: undefined,
  IMDS_API_COMPUTE_TLS_KEY_FILE: undefined,
  IMDS_API_COMPUTE_TLS_CLIENT_CA_FILE: undefined,
  IMDS_API_COMPUTE_RETRY_SECONDS: '60',
} as const satisfies Record<string, string | undefined>

const FILES = [
  'IMDS_API_COMPUTE_TLS_CERT_FILE',
  'IMDS_API_COMPUTE_TLS_KEY_FILE',
  'IMDS_API_COMPUTE_TLS_CLIENT_CA_FILE',
] as const

/** Parses the settings. Calls `fault` for each wrong one, and then returns undefined. */
export function parseComputeListener(
  read: (variable: keyof typeof COMPUTE_SETTINGS) => string | undefined,
  fault: (variable: string, message: string) => void,
): ComputeListener | undefined {
  const text = read('IMDS_API_COMPUTE_LISTEN')!
  const listen = parseUnixSocket(text) ?? parseAddressPort(text)
  if (listen === undefined)
    fault(
      'IMDS_API_COMPUTE_LISTEN',
      `"${text}" is not ADDRESS:PORT or unix:PATH, such as 127.0.0.1:8171 or unix:/run/imds-api/compute.sock`,
    )
  const [certificate, key, clientCa] = FILES.map(read)
  const given = FILES.filter((variable) => read(variable) !== undefined)
  if (given.length > 0)
    for (const variable of FILES.filter((one) => !given.includes(one)))
      fault(variable, `is not set: ${given[0]!} needs it`)
  if (given.length === 0 && listen !== undefined && listen.path === undefined && !isLoopback(listen.host)) {
    fault(
      'IMDS_API_COMPUTE_LISTEN',
      `${formatPlace(listen)} must be a loopback address or a unix socket without client certificates: set ${FILES.join(', ')}`,
    )
  }
  if (given.length > 0 && listen?.path !== undefined)
    fault('IMDS_API_COMPUTE_LISTEN', 'must be ADDRESS:PORT with client certificates: a unix socket needs none')
  const retrySeconds = parseWhole(read('IMDS_API_COMPUTE_RETRY_SECONDS')!, 1, 86_400)
  if (retrySeconds === undefined) fault('IMDS_API_COMPUTE_RETRY_SECONDS', wholeFault(1, 86_400))
  const tls =
    certificate === undefined || key === undefined || clientCa === undefined
      ? undefined
      : { certificate, key, clientCa }
  return listen === undefined || retrySeconds === undefined ? undefined : { listen, tls, retrySeconds }
}
