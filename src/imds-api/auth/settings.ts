/** The settings of tokens: parses their variables. Pure. */
import { isIssuer, ISSUER_RULE } from '../../identity/issuer.ts'
import { anyText, whole, type AddFault, type Values } from '../../runtime/variables.ts'

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
  /** Undefined: this API publishes no keys of identity tokens. */
  readonly issuer: IssuerSettings | undefined
}

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
  }
}
