/** The states of a cloud IP. changes/cloud-ips.ts has their transitions. */
export const CLOUD_IP_STATES = ['unmapped', 'reserved', 'mapped'] as const
/** One of CLOUD_IP_STATES. */
export type CloudIpStatus = (typeof CLOUD_IP_STATES)[number]
