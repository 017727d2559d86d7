/** Where the operator API is: its listeners and its paths, declared once for its servers and its client. */

/** The default of IMDS_OPERATOR_SOCKET: the unix socket, with the whole API. */
export const DEFAULT_OPERATOR_SOCKET = '/run/imds/operator.sock'
/** The default of IMDS_OPERATOR_LISTEN: the TCP listener, for metrics and health. */
export const DEFAULT_OPERATOR_LISTEN = '127.0.0.1:9169'

/** The unix socket of the daemon that has these variables. */
export function operatorSocketOf(variables: Readonly<Record<string, string | undefined>>): string {
  const socket = (variables['IMDS_OPERATOR_SOCKET'] ?? '').trim()
  return `unix:${socket === '' ? DEFAULT_OPERATOR_SOCKET : socket}`
}

/** `:id` is a placeholder for an instance's id. The TCP listener has `metrics`, `live` and `ready` only. */
export const PATHS = {
  page: '/',
  metrics: '/metrics',
  live: '/livez',
  ready: '/readyz',
  instance: '/instances/:id',
  reports: '/instances/:id/reports',
  explain: '/explain',
  firewall: '/firewall',
} as const
