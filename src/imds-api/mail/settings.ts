/** The settings of mail: parses their variables. Pure. */
import { isLoopback } from '../../runtime/host-port.ts'
import type { Parsed } from '../../metadata/parsed.ts'
import { anyText, checked, matching, type AddFault, type Values } from '../../runtime/variables.ts'
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

const SUBMISSION_PORTS = { 'smtp:': 587, 'smtps:': 465 } as const
type Scheme = keyof typeof SUBMISSION_PORTS

/** `user`: '' if the URL names none. */
interface MailServer extends Pick<MailSettings, 'host' | 'port'> {
  readonly scheme: Scheme
  readonly user: string
}

export const MAIL_VARIABLES = {
  IMDS_API_SMTP: {
    parse: parseServer,
    needs: ['IMDS_API_MAIL_FROM', 'IMDS_API_INVITATION_URL'],
    help: 'the mail server for invitations: smtp://[USER@]HOST[:PORT] (587, STARTTLS if offered) or smtps:// (465)',
  },
  IMDS_API_SMTP_PASSWORD_FILE: {
    parse: anyText,
    help: 'the password of USER, in the first line of a file; read for each mail',
  },
  IMDS_API_MAIL_FROM: {
    parse: matching(isEmailAddress, 'must be an address such as noreply@example.com'),
    help: 'the address from which invitations are sent; required with IMDS_API_SMTP',
  },
  IMDS_API_INVITATION_URL: {
    parse: checked(faultOfInvitationUrl),
    help: 'the page on which people answer invitations; required with IMDS_API_SMTP',
  },
}

/** Undefined: invitations are not sent, or there was a fault. */
export function mailSettingsOf(
  values: Values<typeof MAIL_VARIABLES>,
  fault: AddFault<keyof typeof MAIL_VARIABLES>,
): MailSettings | undefined {
  const {
    IMDS_API_SMTP: server,
    IMDS_API_SMTP_PASSWORD_FILE: passwordFile,
    IMDS_API_MAIL_FROM: from,
    IMDS_API_INVITATION_URL: invitationUrl,
  } = values
  if (server === undefined) return undefined
  const { host, port, scheme, user } = server
  if (user !== '' && passwordFile === undefined)
    fault('IMDS_API_SMTP_PASSWORD_FILE', 'is not set: IMDS_API_SMTP names a user')
  if (user === '' && passwordFile !== undefined)
    fault('IMDS_API_SMTP', 'must name the user of IMDS_API_SMTP_PASSWORD_FILE, such as smtp://USER@HOST')
  if (from === undefined || invitationUrl === undefined) return undefined
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

function parseServer(text: string): Parsed<MailServer, string> {
  const form = 'must be smtp://USER@HOST:PORT or smtps://USER@HOST:PORT'
  if (!URL.canParse(text)) return { ok: false, faults: [form] }
  const { protocol: scheme, hostname, port, username, password, pathname, search, hash } = new URL(text)
  const user = decoded(username)
  const isPlain = hostname !== '' && port !== '0' && ['', '/'].includes(pathname) && `${search}${hash}` === ''
  if ((scheme !== 'smtp:' && scheme !== 'smtps:') || user === undefined || !isPlain)
    return { ok: false, faults: [form] }
  if (password !== '') {
    const fault = 'must not have a password in it, since other programs can read it'
    return { ok: false, faults: [`${fault}: name its file in IMDS_API_SMTP_PASSWORD_FILE`] }
  }
  const host = hostname.replace(/^\[|\]$/g, '')
  return { ok: true, value: { scheme, host, port: port === '' ? SUBMISSION_PORTS[scheme] : Number(port), user } }
}

function decoded(text: string): string | undefined {
  try {
    return decodeURIComponent(text)
  } catch {
    return undefined
  }
}

function faultOfInvitationUrl(text: string): string | undefined {
  const problem = faultOfWebUrl(text)
  if (problem === 'credentials') return 'must not have a user or a password in it, since every invitation shows it'
  return problem === 'form'
    ? 'must be the page on which people answer invitations, such as https://cloud.example.com/invitations'
    : undefined
}
