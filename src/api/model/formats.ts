/** Formats of text in requests, for `format` in a schema: how each is checked, and what the error says of a field that does not have it. */
import { isCountryCode } from './countries.ts'
import { parseVatNumber } from './vat-number.ts'

interface Format { readonly isValid: (text: string) => boolean, readonly fault: string }

/** Telephone numbers of E.164 with the leading +, without spaces. */
export const TELEPHONE_PATTERN = '^\\+[1-9][0-9]{6,14}$'
const TELEPHONE = new RegExp(TELEPHONE_PATTERN)

/** Every format, by its name. */
export const FORMATS: Readonly<Record<string, Format>> = {
  'country-code': { isValid: isCountryCode, fault: 'must be a two-letter code of ISO 3166-1' },
  'eu-vat-number': { isValid: (text) => parseVatNumber(text) !== undefined, fault: 'must be a valid EU VAT number, with the prefix of its country' },
  line: { isValid: (text) => !/\p{Cc}/u.test(text), fault: 'must not contain control characters' },
  telephone: { isValid: (text) => TELEPHONE.test(text), fault: 'must be a telephone number of E.164, such as +442079460000' },
}
