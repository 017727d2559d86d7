/** The settings of the compute interface, from the environment. Pure. */
import type { Parsed } from '../../metadata/parsed.ts'
import {
  formatListenAddress,
  isLoopback,
  parseAddressPort,
  parseUnixSocket,
  type ListenAddress,
} from '../../runtime/host-port.ts'
import { anyText, whole, type AddFault, type Values } from '../../runtime/variables.ts'

/**
 * Where hypervisors reach the compute interface. `tls`: files; undefined: only this host can connect. `retrySeconds`:
 * after this time without an outcome, an action is given out again.
 */
export interface ComputeListener {
  readonly listen: ListenAddress
  readonly tls: { readonly certificate: string; readonly key: string; readonly clientCa: string } | undefined
  readonly retrySeconds: number
}

export const COMPUTE_VARIABLES = {
  IMDS_API_COMPUTE_LISTEN: {
    default: '127.0.0.1:8171',
    parse: parsePlace,
    help: 'the listener for hypervisors: ADDRESS:PORT or unix:PATH',
  },
  IMDS_API_COMPUTE_TLS_CERT_FILE: { parse: anyText, help: 'its certificate, PEM' },
  IMDS_API_COMPUTE_TLS_KEY_FILE: { parse: anyText, help: 'the private key of that, PEM' },
  IMDS_API_COMPUTE_TLS_CLIENT_CA_FILE: { parse: anyText, help: 'who signs the certificates of hypervisors, PEM' },
  IMDS_API_COMPUTE_RETRY_SECONDS: {
    default: '60',
    parse: whole(1, 86_400),
    help: 'an action without an outcome is given out again',
  },
}

const FILES = [
  'IMDS_API_COMPUTE_TLS_CERT_FILE',
  'IMDS_API_COMPUTE_TLS_KEY_FILE',
  'IMDS_API_COMPUTE_TLS_CLIENT_CA_FILE',
] as const

export function parseComputeListener(
  values: Values<typeof COMPUTE_VARIABLES>,
  fault: AddFault<keyof typeof COMPUTE_VARIABLES>,
): ComputeListener {
  const listen = values.IMDS_API_COMPUTE_LISTEN
  const [certificate, key, clientCa] = FILES.map((variable) => values[variable])
  const given = FILES.filter((variable) => values[variable] !== undefined)
  if (given.length > 0)
    for (const variable of FILES.filter((one) => !given.includes(one)))
      fault(variable, `is not set: ${given[0]!} needs it`)
  if (given.length === 0 && listen.path === undefined && !isLoopback(listen.host)) {
    fault(
      'IMDS_API_COMPUTE_LISTEN',
      `${formatListenAddress(listen)} must be a loopback address or a unix socket without client certificates: ` +
        `set ${FILES.join(', ')}`,
    )
  }
  if (given.length > 0 && listen.path !== undefined)
    fault('IMDS_API_COMPUTE_LISTEN', 'must be ADDRESS:PORT with client certificates: a unix socket needs none')
  const tls =
    certificate === undefined || key === undefined || clientCa === undefined
      ? undefined
      : { certificate, key, clientCa }
  return { listen, tls, retrySeconds: values.IMDS_API_COMPUTE_RETRY_SECONDS }
}

function parsePlace(text: string): Parsed<ListenAddress, string> {
  const value = parseUnixSocket(text) ?? parseAddressPort(text)
  if (value !== undefined) return { ok: true, value }
  const examples = '127.0.0.1:8171 or unix:/run/imds-api/compute.sock'
  return { ok: false, faults: [`"${text}" is not ADDRESS:PORT or unix:PATH, such as ${examples}`] }
}
