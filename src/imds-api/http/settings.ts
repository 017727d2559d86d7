/** The settings of the listeners for clients: parses their variables. Pure. */
import { Address4, Address6 } from 'ip-address'
import {
  formatHostPort,
  formatListenAddress,
  isLoopback,
  parseAddressPort,
  parseUnixSocket,
  type ListenAddress,
} from '../../runtime/host-port.ts'
import { anyText, list, listOf, whole, type AddFault, type Values } from '../../runtime/variables.ts'
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
  IMDS_API_LISTEN: { default: '127.0.0.1:8170', parse: anyText, help: 'for clients: ADDRESS:PORT or unix:PATH, ...' },
  IMDS_API_TLS_CERT_FILE: { parse: anyText, help: 'the certificate of these listeners, PEM' },
  IMDS_API_TLS_KEY_FILE: { parse: anyText, help: 'its private key, PEM' },
  IMDS_API_BASE_URL: { parse: anyText, help: 'the URL at which clients reach the API' },
  IMDS_API_TRUSTED_PROXIES: {
    default: '',
    parse: listOf(
      (proxy) => proxy === UNIX_PROXIES || Address4.isValid(proxy) || Address6.isValid(proxy),
      `is not an address, a network or ${UNIX_PROXIES}`,
    ),
    help: 'addresses and networks of proxies, and unix:',
  },
  IMDS_API_CONNECTIONS_PER_ADDRESS: { default: '256', parse: whole(1, 4_096), help: 'connections of one address' },
  IMDS_API_STOP_DELAY_SECONDS: {
    default: '0',
    parse: whole(0, 30),
    help: 'how long requests are served after SIGTERM, while /readyz is 503',
  },
}

type ClientFault = AddFault<keyof typeof CLIENT_VARIABLES>

/** Parses the variables. Undefined: there was a fault. */
export function parseClientSettings(
  values: Values<typeof CLIENT_VARIABLES>,
  fault: ClientFault,
): ClientSettings | undefined {
  const [certificate, key] = [values.IMDS_API_TLS_CERT_FILE, values.IMDS_API_TLS_KEY_FILE]
  if (certificate !== undefined && key === undefined)
    fault('IMDS_API_TLS_KEY_FILE', 'is not set: IMDS_API_TLS_CERT_FILE needs the file of its private key')
  if (key !== undefined && certificate === undefined)
    fault('IMDS_API_TLS_CERT_FILE', 'is not set: IMDS_API_TLS_KEY_FILE needs the file of its certificate')
  const tls = certificate === undefined || key === undefined ? undefined : { certificate, key }
  const listen = parseListen(values.IMDS_API_LISTEN, certificate !== undefined || key !== undefined, fault)
  const baseUrl = parseBaseUrl(values.IMDS_API_BASE_URL ?? defaultBaseUrl(listen, tls !== undefined), fault)
  if (baseUrl === undefined) return undefined
  return {
    listen,
    baseUrl,
    tls,
    trustedProxies: values.IMDS_API_TRUSTED_PROXIES,
    connectionsPerAddress: values.IMDS_API_CONNECTIONS_PER_ADDRESS,
    stopDelaySeconds: values.IMDS_API_STOP_DELAY_SECONDS,
  }
}

function parseListen(value: string, isTls: boolean, fault: ClientFault): readonly ListenAddress[] {
  const texts = list(value)
  if (texts.length === 0) fault('IMDS_API_LISTEN', 'names no address')
  const addresses: ListenAddress[] = []
  for (const text of texts) {
    const address = parseUnixSocket(text) ?? parseAddressPort(text)
    if (address === undefined)
      fault(
        'IMDS_API_LISTEN',
        `"${text}" is not ADDRESS:PORT or unix:PATH, such as 127.0.0.1:8170, [::1]:8170 or unix:/run/imds-api/api.sock`,
      )
    else addresses.push(address)
    if (!isTls && address !== undefined && address.path === undefined && !isLoopback(address.host)) {
      fault(
        'IMDS_API_LISTEN',
        `"${text}" must be a loopback address or a unix socket without TLS, since secrets travel: set ` +
          'IMDS_API_TLS_CERT_FILE and IMDS_API_TLS_KEY_FILE, or put a proxy in front',
      )
    }
  }
  const fixed = addresses.filter((one) => one.path !== undefined || one.port !== 0).map(formatListenAddress)
  if (new Set(fixed).size < fixed.length) fault('IMDS_API_LISTEN', 'names one address twice')
  return addresses
}

/** The URL of the first listener with an address. Undefined: all are unix sockets. */
function defaultBaseUrl(listen: readonly ListenAddress[], isTls: boolean): string | undefined {
  if (listen.length === 0) return 'http://localhost' // the listeners are faulty
  const address = listen.find((one) => one.path === undefined)
  return address && `${isTls ? 'https' : 'http'}://${formatHostPort(address)}`
}

function parseBaseUrl(text: string | undefined, fault: ClientFault): string | undefined {
  const message = faultOfBaseUrl(text)
  if (message !== undefined) fault('IMDS_API_BASE_URL', message)
  return message === undefined ? text?.replace(/\/+$/, '') : undefined
}

function faultOfBaseUrl(text: string | undefined): string | undefined {
  if (text === undefined)
    return 'is not set: with unix sockets only it must be the URL by which clients reach the proxy'
  const problem = faultOfWebUrl(text)
  if (/[?#]/.test(text) || problem === 'form')
    return 'must be the URL by which clients reach this API, such as https://api.gb1.example.com'
  return problem === 'credentials'
    ? 'must not have a user or a password in it, since every response shows it'
    : undefined
}
