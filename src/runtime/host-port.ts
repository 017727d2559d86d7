/** Addresses where a server listens or is reached, as text: a host and a port, or a unix socket. */
import { canonicalAddress } from '../metadata/address.ts'

/** `port` 0 stands for any free one. */
export interface HostPort {
  readonly host: string
  readonly port: number
  readonly path?: undefined
}

/** `10.0.0.1:80` or `[fd00::1]:80`. */
export function formatHostPort({ host, port }: HostPort): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`
}

/**
 * Splits `HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT`; undefined for any other form and for a port above 65535. Does not
 * check the host.
 */
export function parseHostPort(text: string): { readonly host: string; readonly port: number | undefined } | undefined {
  const { v6, name, port } =
    /^(?:\[(?<v6>[0-9A-Fa-f:.]+)\]|(?<name>[A-Za-z0-9._-]+))(?::(?<port>\d{1,5}))?$/.exec(text)?.groups ?? {}
  const host = v6 ?? name
  if (host === undefined || Number(port ?? 0) > 65_535) return undefined
  return { host, port: port === undefined ? undefined : Number(port) }
}

/**
 * `ADDRESS:PORT`: like `parseHostPort` with a port, and the host is an IPv4 address or an IPv6 address in brackets. The
 * result has its canonical form.
 */
export function parseAddressPort(text: string): HostPort | undefined {
  const { host = '', port } = parseHostPort(text) ?? {}
  const address = canonicalAddress(host)
  const isBracketed = text.startsWith('[') // as an IPv6 address must be, and an IPv4 address must not
  return address === undefined || port === undefined || isBracketed !== host.includes(':')
    ? undefined
    : { host: address, port }
}

/** True for a canonical address that only this machine can reach. */
export function isLoopback(host: string): boolean {
  return host === '::1' || host.startsWith('127.')
}

/** A unix socket: the absolute path of its file. */
export interface UnixSocket {
  readonly path: string
}

/** The longest path of a unix socket on Linux, in bytes. */
export const MAX_UNIX_SOCKET_PATH_BYTES = 107
const UNIX = 'unix:'

/** `unix:/run/imds-api/api.sock`. Undefined for any other form, a relative path and one that is too long. */
export function parseUnixSocket(text: string): UnixSocket | undefined {
  const path = text.startsWith(UNIX) ? text.slice(UNIX.length) : ''
  return /^\/.*[^/]$/.test(path) && Buffer.byteLength(path) <= MAX_UNIX_SOCKET_PATH_BYTES ? { path } : undefined
}

export type ListenAddress = HostPort | UnixSocket

/** The text that `parseAddressPort` or `parseUnixSocket` reads. */
export function formatListenAddress(address: ListenAddress): string {
  return address.path !== undefined ? `${UNIX}${address.path}` : formatHostPort(address)
}
