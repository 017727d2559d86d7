/** The settings of tokens: parses their variables. Pure. */
import type { Parsed } from '../../metadata/parsed.ts'
import { isIssuer, ISSUER_RULE } from '../../identity/issuer.ts'
import { anyText, list, whole, type AddFault, type Values } from '../../runtime/variables.ts'

/** The path of the issuer of identity tokens, below the URL of the API. */
export const ISSUER_PATH = '/oidc'

/** `certificateFile`: the certificates of all hypervisors. */
export interface IssuerSettings {
  readonly url: string
  readonly certificateFile: string
}

export interface TokenSettings {
  readonly accessTokenSeconds: number
  readonly refreshTokenSeconds: number
  /**
   * The request headers that may carry a user's one-time password, in order of preference. Lower case, as in
   * `request.headers`. A response asks for the password in the same headers.
   */
  readonly otpHeaders: readonly string[]
  /** Undefined: this API publishes no keys of identity tokens. */
  readonly issuer: IssuerSettings | undefined
}

/** No header with another meaning has such a name. */
const OTP_HEADER = /^x-[a-z0-9-]+-otp$/

export const TOKEN_VARIABLES = {
  IMDS_API_ACCESS_TOKEN_SECONDS: {
    default: '7200',
    parse: whole(60, 86_400),
    help: 'the lifetime of an access token, 60 to 86,400',
  },
  IMDS_API_REFRESH_TOKEN_SECONDS: {
    default: '2592000',
    parse: whole(3_600, 31_536_000),
    help: 'the lifetime of a refresh token, 3,600 to 31,536,000',
  },
  IMDS_API_OTP_HEADERS: {
    default: 'X-Service-OTP,X-Brightbox-OTP',
    parse: parseOtpHeaders,
    help: 'the headers of one-time passwords, whose names begin with X- and end with -OTP',
  },
  IMDS_API_IDENTITY_CERT_FILE: {
    parse: anyText,
    help: "the certificates of all hypervisors' identity keys, PEM: imds-api publishes the keys as an issuer",
  },
}

export function parseTokenSettings(
  values: Values<typeof TOKEN_VARIABLES>,
  baseUrl: string,
  fault: AddFault<keyof typeof TOKEN_VARIABLES>,
): TokenSettings {
  const [url, certificateFile] = [`${baseUrl}${ISSUER_PATH}`, values.IMDS_API_IDENTITY_CERT_FILE]
  if (certificateFile !== undefined && !isIssuer(url))
    fault('IMDS_API_IDENTITY_CERT_FILE', `makes ${url} an issuer, which must be ${ISSUER_RULE}: set IMDS_API_BASE_URL`)
  return {
    issuer: certificateFile === undefined ? undefined : { url, certificateFile },
    accessTokenSeconds: values.IMDS_API_ACCESS_TOKEN_SECONDS,
    refreshTokenSeconds: values.IMDS_API_REFRESH_TOKEN_SECONDS,
    otpHeaders: values.IMDS_API_OTP_HEADERS,
  }
}

/** The names of headers, in lower case. */
function parseOtpHeaders(text: string): Parsed<readonly string[], string> {
  const value = [...new Set(list(text).map((name) => name.toLowerCase()))]
  const faults =
    value.length === 0
      ? ['must be the names of one or more headers, such as X-Service-OTP']
      : value
          .filter((name) => !OTP_HEADER.test(name))
          .map((name) => `"${name}" must begin with X- and end with -OTP, such as X-Service-OTP`)
  return faults.length > 0 ? { ok: false, faults } : { ok: true, value }
}
