/** A host and a port as text. */

/** `port` 0 stands for any free one. */
export interface HostPort { readonly host: string, readonly port: number }

/** `10.0.0.1:80` or `[fd00::1]:80`. */
export function formatHostPort({ host, port }: HostPort): string {
  return host.includes(':') ? `[${host}]:${String(port)}` : `${host}:${String(port)}`
}

/** Splits `HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT`; undefined for any other form and for a port above 65535. Does not check the host. */
export function parseHostPort(text: string): { readonly host: string, readonly port: number | undefined } | undefined {
  const { v6, name, port } = /^(?:\[(?<v6>[0-9A-Fa-f:.]+)\]|(?<name>[A-Za-z0-9._-]+))(?::(?<port>\d{1,5}))?$/.exec(text)?.groups ?? {}
  const host = v6 ?? name
  if (host === undefined || Number(port ?? 0) > 65_535) return undefined
  return { host, port: port === undefined ? undefined : Number(port) }
}
