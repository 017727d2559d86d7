/** The paths of the operator API, declared once for its server and its client. */

/** `:id` is a placeholder for an instance's id. */
export const PATHS = {
  metrics: '/metrics', live: '/livez', ready: '/readyz', instance: '/instances/:id', explain: '/explain', firewall: '/firewall',
} as const
