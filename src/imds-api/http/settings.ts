/** The settings of the listeners for clients: parses their variables. Pure. */
import { Address4, Address6 } from 'ip-address'
import type { Parsed } from '../../metadata/parsed.ts'
import { formatHostPort, formatListenAddress, isLoopback, type ListenAddress } from '../../runtime/host-port.ts'
import {
  anyText,
  checked,
  list,
  listenAddress,
  listOf,
  whole,
  type AddFault,
  type Values,
} from '../../runtime/variables.ts'
import { faultOfWebUrl } from '../model/web-url.ts'

/** The text in IMDS_API_TRUSTED_PROXIES that trusts every process that can connect to a unix socket. */
export const UNIX_PROXIES = 'unix:'

export interface ClientSettings {
  /** At least one. */
  readonly listen: readonly ListenAddress[]
  /** The beginning of every `url` in a representation, without a final slash. */
  readonly baseUrl: string
  /** Files of the certificate and its key; undefined: plain HTTP, for a proxy on this host. */
  readonly tls: { readonly certificate: string; readonly key: string } | undefined
  /** Addresses and networks. The entry `unix:` trusts every process that connects to a unix socket. */
  readonly trustedProxies: readonly string[]
  /** The most connections of one address that is no trusted proxy. */
  readonly connectionsPerAddress: number
  /** How long a process serves after a signal to stop. */
  readonly stopDelaySeconds: number
}

export const CLIENT_VARIABLES = {
  IMDS_API_LISTEN: {
    default: '127.0.0.1:8170',
    parse: parseListen,
    help: 'for clients: ADDRESS:PORT or unix:PATH, ...; without TLS only loopback addresses and unix sockets',
  },
  IMDS_API_TLS_CERT_FILE: {
    parse: anyText,
    needs: ['IMDS_API_TLS_KEY_FILE'],
    help: 'the certificate of these listeners with its chain, PEM: they speak HTTPS only',
  },
  IMDS_API_TLS_KEY_FILE: {
    parse: anyText,
    needs: ['IMDS_API_TLS_CERT_FILE'],
    help: 'its private key, PEM, which imds-api can read',
  },
  IMDS_API_BASE_URL: {
    parse: checked(faultOfBaseUrl),
    help: 'the URL at which clients reach the API, and with which each url begins',
  },
  IMDS_API_TRUSTED_PROXIES: {
    default: '',
    parse: listOf(
      (proxy) => proxy === UNIX_PROXIES || Address4.isValid(proxy) || Address6.isValid(proxy),
      `is not an address, a network or ${UNIX_PROXIES}`,
    ),
    help: 'addresses and networks of proxies whose X-Forwarded-For is trusted; unix: all that use a unix socket',
  },
  IMDS_API_CONNECTIONS_PER_ADDRESS: {
    default: '256',
    parse: whole(1, 4_096),
    help: 'connections of one address, except trusted proxies; 1 to 4,096',
  },
  IMDS_API_STOP_DELAY_SECONDS: {
    default: '0',
    parse: whole(0, 30),
    help: 'how long requests are served after SIGTERM, while /readyz is 503; 0 to 30',
  },
}

export function clientSettingsOf(
  values: Values<typeof CLIENT_VARIABLES>,
  fault: AddFault<keyof typeof CLIENT_VARIABLES>,
): ClientSettings {
  const { IMDS_API_LISTEN: listen, IMDS_API_TLS_CERT_FILE: certificate, IMDS_API_TLS_KEY_FILE: key } = values
  if ((certificate ?? key) === undefined)
    for (const address of listen)
      if (address.path === undefined && !isLoopback(address.host))
        fault(
          'IMDS_API_LISTEN',
          `"${formatHostPort(address)}" must be a loopback address or a unix socket without TLS, since secrets travel: ` +
            'set IMDS_API_TLS_CERT_FILE and IMDS_API_TLS_KEY_FILE, or put a proxy in front',
        )
  const first = listen.find((address) => address.path === undefined)
  if (values.IMDS_API_BASE_URL === undefined && first === undefined)
    fault('IMDS_API_BASE_URL', 'is not set: with unix sockets only it must be the URL by which clients reach the proxy')
  const ofListener = first && `${certificate === undefined ? 'http' : 'https'}://${formatHostPort(first)}`
  return {
    listen,
    baseUrl: (values.IMDS_API_BASE_URL ?? ofListener ?? '').replace(/\/+$/, ''),
    tls: certificate && key ? { certificate, key } : undefined,
    trustedProxies: values.IMDS_API_TRUSTED_PROXIES,
    connectionsPerAddress: values.IMDS_API_CONNECTIONS_PER_ADDRESS,
    stopDelaySeconds: values.IMDS_API_STOP_DELAY_SECONDS,
  }
}

function parseListen(text: string): Parsed<readonly ListenAddress[], string> {
  const parse = listenAddress('127.0.0.1:8170, [::1]:8170 or unix:/run/imds-api/api.sock')
  const parsed = list(text).map((part) => parse(part))
  const value = parsed.flatMap((one) => (one.ok ? [one.value] : []))
  const faults = parsed.flatMap((one) => (one.ok ? [] : one.faults))
  if (parsed.length === 0) faults.push('names no address')
  const fixed = value.filter((one) => one.path !== undefined || one.port !== 0).map(formatListenAddress)
  if (new Set(fixed).size < fixed.length) faults.push('names one address twice')
  return faults.length > 0 ? { ok: false, faults } : { ok: true, value }
}

function faultOfBaseUrl(text: string): string | undefined {
  const problem = faultOfWebUrl(text)
  if (/[?#]/.test(text) || problem === 'form')
    return 'must be the URL by which clients reach this API, such as https://api.gb1.example.com'
  return problem === 'credentials'
    ? 'must not have a user or a password in it, since every response shows it'
    : undefined
}
