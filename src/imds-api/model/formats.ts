/**
 * The formats that schemas of requests name in `format`: how the text of a field is checked, and what the error says of
 * a wrong one.
 */
import { isLine, LINE_RULE } from '../../metadata/identifiers.ts'
import { isTime, TIME_RULE } from '../../metadata/time.ts'
import { isNetwork } from '../../metadata/address.ts'
import { isCountryCode } from './countries.ts'
import { isEmailAddress } from './email-address.ts'
import { parseSshKeys } from './ssh-key.ts'
import { parseVatNumber } from './vat-number.ts'

interface Format {
  readonly isValid: (text: string) => boolean
  readonly fault: string
}

/** Telephone numbers of E.164 with the leading +, without spaces. */
const TELEPHONE = /^\+[1-9][0-9]{6,14}$/

/**
 * A name that a PTR record may have: a host name (RFC 1123, 2.1, and RFC 1035, 2.3.4) of at least two labels, also with
 * underscores (RFC 2181, 11), and * as its first label. Names in other scripts are in their ASCII form (xn--...).
 */
function isPointerName(text: string): boolean {
  const name = text.replace(/\.$/, '')
  const labels = name.replace(/^\*\./, 'x.').split('.')
  return (
    name.length <= 253 &&
    labels.length > 1 &&
    labels.every((label) => /^[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?$/i.test(label)) &&
    !/^\d+$/.test(labels.at(-1)!)
  )
}

/**
 * A domain below which records have host names: they are longer by a label, at most the 20 characters of
 * `cip-203-0-113-100.`, and have no final dot.
 */
function isDomain(text: string): boolean {
  return text.length <= 200 && text === text.toLowerCase() && !/[_*]|\.$/.test(text) && isPointerName(`srv.${text}`)
}

export const FORMATS: Readonly<Record<string, Format>> = {
  'country-code': { isValid: isCountryCode, fault: 'must be a two-letter code of ISO 3166-1' },
  domain: { isValid: isDomain, fault: 'must be a domain name in lower case such as gb1.example.com' },
  'email-address': { isValid: isEmailAddress, fault: 'must be an address such as ada@example.com' },
  'eu-vat-number': {
    isValid: (text) => parseVatNumber(text) !== undefined,
    fault: 'must be a valid EU VAT number, with the prefix of its country',
  },
  line: { isValid: isLine, fault: `must be ${LINE_RULE}` },
  network: { isValid: isNetwork, fault: 'must be an address or a network such as 192.0.2.0/24 or 2001:db8::/32' },
  'pointer-name': { isValid: isPointerName, fault: 'must be a host name such as www.example.com, in ASCII' },
  'ssh-keys': {
    isValid: (text) => parseSshKeys(text).ok,
    fault: 'must be the lines of an authorized_keys file, each with a key',
  },
  telephone: {
    isValid: (text) => TELEPHONE.test(text),
    fault: 'must be a telephone number of E.164, such as +442079460000',
  },
  timestamp: { isValid: isTime, fault: `must be ${TIME_RULE}` },
}
