/** The settings of mail: parses their variables. Pure. */
import { isLoopback } from '../../runtime/host-port.ts'
import { anyText, type AddFault, type Values } from '../../runtime/variables.ts'
import { isEmailAddress } from '../model/email-address.ts'
import { faultOfWebUrl } from '../model/web-url.ts'

/** How invitations are sent. `passwordFile`: read for each mail, so a password can be changed while imds-api runs. */
export interface MailSettings {
  readonly host: string
  readonly port: number
  /**
   * `smtps`: TLS from the start. `starttls`: STARTTLS is required. `optional`: STARTTLS if the server offers it.
   * `none`: no TLS.
   */
  readonly tls: 'smtps' | 'starttls' | 'optional' | 'none'
  readonly credentials: { readonly user: string; readonly passwordFile: string } | undefined
  readonly from: string
  /** What an invitation links to, with the id of the collaboration as the parameter `collaboration`. */
  readonly invitationUrl: string
}

/** The variables. Their texts are checked only if there is a mail server. */
export const MAIL_VARIABLES = {
  IMDS_API_SMTP: { parse: anyText, help: 'the mail server for invitations: smtp[s]://[USER@]HOST[:PORT]' },
  IMDS_API_SMTP_PASSWORD_FILE: { parse: anyText, help: 'the password of USER, in the first line of a file' },
  IMDS_API_MAIL_FROM: { parse: anyText, help: 'the address from which invitations are sent' },
  IMDS_API_INVITATION_URL: { parse: anyText, help: 'the page on which people answer invitations' },
}

const SUBMISSION_PORTS = { 'smtp:': 587, 'smtps:': 465 } as const
type Scheme = keyof typeof SUBMISSION_PORTS

/** Parses the variables. Undefined: invitations are not sent, or there was a fault. */
export function parseMailSettings(
  values: Values<typeof MAIL_VARIABLES>,
  fault: AddFault<keyof typeof MAIL_VARIABLES>,
): MailSettings | undefined {
  const {
    IMDS_API_SMTP: url,
    IMDS_API_SMTP_PASSWORD_FILE: passwordFile,
    IMDS_API_MAIL_FROM: from,
    IMDS_API_INVITATION_URL: invitationUrl,
  } = values
  if (url === undefined) return undefined
  const server = parseServer(url)
  if (server === undefined) fault('IMDS_API_SMTP', 'must be smtp://USER@HOST:PORT or smtps://USER@HOST:PORT')
  if (server?.hasPassword === true)
    fault(
      'IMDS_API_SMTP',
      'must not have a password in it, since other programs can read it: name its file in IMDS_API_SMTP_PASSWORD_FILE',
    )
  if (server !== undefined && server.user !== '' && passwordFile === undefined)
    fault('IMDS_API_SMTP_PASSWORD_FILE', 'is not set: IMDS_API_SMTP names a user')
  if (server?.user === '' && passwordFile !== undefined)
    fault('IMDS_API_SMTP', 'must name the user of IMDS_API_SMTP_PASSWORD_FILE, such as smtp://USER@HOST')
  if (from === undefined || !isEmailAddress(from))
    fault('IMDS_API_MAIL_FROM', 'must be the address from which invitations are sent, such as noreply@example.com')
  const pageFault = faultOfWebUrl(invitationUrl ?? '')
  if (pageFault === 'credentials')
    fault('IMDS_API_INVITATION_URL', 'must not have a user or a password in it, since every invitation shows it')
  if (pageFault === 'form') {
    fault(
      'IMDS_API_INVITATION_URL',
      'must be the page on which people answer invitations, such as https://cloud.example.com/invitations',
    )
  }
  if (server === undefined || from === undefined || invitationUrl === undefined) return undefined
  const { host, port, scheme, user } = server
  const credentials = passwordFile === undefined ? undefined : { user, passwordFile }
  return { host, port, tls: tlsOf(scheme, host, credentials !== undefined), credentials, from, invitationUrl }
}

/**
 * Credentials are never sent in clear text. A mail server on this host often has a self-signed certificate, so TLS is
 * not used with it.
 */
function tlsOf(scheme: Scheme, host: string, hasCredentials: boolean): MailSettings['tls'] {
  if (scheme === 'smtps:') return 'smtps'
  if (hasCredentials) return 'starttls'
  return host === 'localhost' || isLoopback(host) ? 'none' : 'optional'
}

function parseServer(text: string) {
  if (!URL.canParse(text)) return undefined
  const { protocol, hostname, port, username, password, pathname, search, hash } = new URL(text)
  const user = decoded(username)
  if (protocol !== 'smtp:' && protocol !== 'smtps:') return undefined
  const scheme: Scheme = protocol
  if (
    hostname === '' ||
    user === undefined ||
    port === '0' ||
    !['', '/'].includes(pathname) ||
    search !== '' ||
    hash !== ''
  )
    return undefined
  return {
    scheme,
    host: hostname.replace(/^\[|\]$/g, ''),
    port: port === '' ? SUBMISSION_PORTS[protocol] : Number(port),
    user,
    hasPassword: password !== '',
  }
}

function decoded(text: string): string | undefined {
  try {
    return decodeURIComponent(text)
  } catch {
    return undefined
  }
}
