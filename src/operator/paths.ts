/** The paths of the operator API, declared once for its server and its client. */

/** `:id` stands for the id of an instance. */
export const PATHS = {
  metrics: '/metrics', live: '/livez', ready: '/readyz', instance: '/instances/:id', explain: '/explain', firewall: '/firewall',
} as const
