/**
 * Who calls the compute interface: the hypervisor that a client certificate names. Without TLS only this host can
 * connect, and a caller may act for every hypervisor.
 */
import type { Socket } from 'node:net'
import { TLSSocket, type PeerCertificate } from 'node:tls'

/** The names of a certificate: its common name, and the DNS names that it is also for. Exact text: no wildcards. */
export function namesOfCertificate({
  subject,
  subjectaltname = '',
}: Pick<PeerCertificate, 'subject' | 'subjectaltname'>): readonly string[] {
  const common = (subject as { readonly CN?: string | readonly string[] } | undefined)?.CN
  // Node quotes a name that has a comma, so a quoted one is not the name of a hypervisor.
  const alternative = [...subjectaltname.matchAll(/([^:,]+):("(?:[^"\\]|\\.)*"|[^,]*)(?:, |$)/g)].flatMap(
    ([, kind, name]) => (kind === 'DNS' ? [name!] : []),
  )
  return [...(typeof common === 'string' ? [common] : []), ...alternative]
}

/** True for a hypervisor that the other end of a connection may act for. */
export function mayActFor(socket: Socket, hypervisor: string): boolean {
  return !(socket instanceof TLSSocket) || namesOfCaller(socket).includes(hypervisor)
}

/**
 * The names of the client certificate of a connection: none without TLS. A connection that is closed has no certificate
 * any more.
 */
export function namesOfCaller(socket: Socket): readonly string[] {
  const certificate = socket instanceof TLSSocket ? (socket.getPeerCertificate() as PeerCertificate | null) : null
  return certificate === null ? [] : namesOfCertificate(certificate)
}
