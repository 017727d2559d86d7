/** Sends mail by SMTP. */
import { readSecretFile } from '../../runtime/setting-files.ts'
import type { Mail } from './invitation.ts'
import type { MailSettings } from './settings.ts'

/** Sends a mail. Rejects with an error whose message has no mail address, for a log. */
export type SendMail = (mail: Mail, signal: AbortSignal) => Promise<void>

const TIMEOUTS = { connectionTimeout: 10_000, greetingTimeout: 10_000, dnsTimeout: 10_000, socketTimeout: 30_000 }
/**
 * Faults of the connection, whose messages name only the server. The messages of others may quote the server, with an
 * address or a user.
 */
const FAULTS_OF_CONNECTION = ['ECONNECTION', 'ETIMEDOUT', 'ESOCKET', 'EDNS', 'ETLS']

/**
 * Builds the sender. Each mail has its own connection. The library is loaded in the background: the start need not wait for
 * it, and an upgrade may replace its file before the first mail.
 */
export function buildSmtp({ host, port, tls, credentials, from }: MailSettings): SendMail {
  const server = {
    host,
    port,
    secure: tls === 'smtps',
    requireTLS: tls === 'starttls',
    ignoreTLS: tls === 'none',
    ...TIMEOUTS,
  }
  import('nodemailer').catch(() => undefined) // the first mail tries again, and reports it
  return async ({ to, subject, text }, signal) => {
    try {
      const auth =
        credentials === undefined
          ? {}
          : { auth: { user: credentials.user, pass: readSecretFile(credentials.passwordFile) } }
      const { createTransport } = await import('nodemailer')
      await createTransport({ ...server, ...auth }).sendMail({
        from: { name: '', address: from },
        to: { name: '', address: to },
        envelope: { from: { name: '', address: from }, to: [{ name: '', address: to }] },
        subject,
        text,
        headers: { 'Auto-Submitted': 'auto-generated' },
        signal,
        disableFileAccess: true,
        disableUrlAccess: true,
      })
    } catch (error) {
      throw new Error(reasonOf(error as Failure), { cause: error })
    }
  }
}

interface Failure {
  readonly code?: string
  readonly command?: string
  readonly responseCode?: number
  readonly message: string
}

function reasonOf({ code, command, responseCode, message }: Failure): string {
  if (responseCode !== undefined) return `the mail server answers ${responseCode} to ${command ?? 'the connection'}`
  return code === undefined || FAULTS_OF_CONNECTION.includes(code) || code === 'ENOENT' || code === 'EACCES'
    ? message
    : code
}
