/** A rule of a cloud IP: an external port goes to a port of the server. */
export interface PortTranslator {
  readonly protocol: 'tcp' | 'udp'
  readonly incoming: number
  readonly outgoing: number
}
