/** The settings of the compute interface, from the environment. Pure. */
import { formatListenAddress, isLoopback, type ListenAddress } from '../../runtime/host-port.ts'
import { anyText, listenAddress, whole, type AddFault, type Values } from '../../runtime/variables.ts'

/**
 * Where hypervisors reach the compute interface. `tls`: files; undefined: only this host can connect. `retrySeconds`:
 * after this time without an outcome, an action is given out again.
 */
export interface ComputeListener {
  readonly listen: ListenAddress
  readonly tls: { readonly certificate: string; readonly key: string; readonly clientCa: string } | undefined
  readonly retrySeconds: number
}

const FILES = [
  'IMDS_API_COMPUTE_TLS_CERT_FILE',
  'IMDS_API_COMPUTE_TLS_KEY_FILE',
  'IMDS_API_COMPUTE_TLS_CLIENT_CA_FILE',
] as const
const file = (help: string) => ({ parse: anyText, needs: FILES, help })

export const COMPUTE_VARIABLES = {
  IMDS_API_COMPUTE_LISTEN: {
    default: '127.0.0.1:8171',
    parse: listenAddress('127.0.0.1:8171 or unix:/run/imds-api/compute.sock'),
    help: 'the listener for hypervisors: ADDRESS:PORT or unix:PATH; without the next three only loopback and unix',
  },
  IMDS_API_COMPUTE_TLS_CERT_FILE: file('its certificate with its chain, PEM'),
  IMDS_API_COMPUTE_TLS_KEY_FILE: file('the private key of that, PEM'),
  IMDS_API_COMPUTE_TLS_CLIENT_CA_FILE: file('who signs the certificates of hypervisors, PEM'),
  IMDS_API_COMPUTE_RETRY_SECONDS: {
    default: '60',
    parse: whole(1, 86_400),
    help: 'an action whose outcome is not reported in this time is given out again',
  },
}

export function computeListenerOf(
  values: Values<typeof COMPUTE_VARIABLES>,
  fault: AddFault<keyof typeof COMPUTE_VARIABLES>,
): ComputeListener {
  const listen = values.IMDS_API_COMPUTE_LISTEN
  const [certificate, key, clientCa] = FILES.map((variable) => values[variable])
  const tls = certificate && key && clientCa ? { certificate, key, clientCa } : undefined
  if ((certificate ?? key ?? clientCa) === undefined && listen.path === undefined && !isLoopback(listen.host))
    fault(
      'IMDS_API_COMPUTE_LISTEN',
      `${formatListenAddress(listen)} must be a loopback address or a unix socket without client certificates: ` +
        `set ${FILES.join(', ')}`,
    )
  if (tls !== undefined && listen.path !== undefined)
    fault('IMDS_API_COMPUTE_LISTEN', 'must be ADDRESS:PORT with client certificates: a unix socket needs none')
  return { listen, tls, retrySeconds: values.IMDS_API_COMPUTE_RETRY_SECONDS }
}
