/** E-mail addresses: the addr-spec of RFC 2822 without comments, folding and obsolete forms, and with the lengths of SMTP (RFC 5321, 4.5.3.1). */

const ATOM = '[A-Za-z0-9!#$%&\'*+/=?^_`{|}~-]+'
const DOT_ATOM = `${ATOM}(?:\\.${ATOM})*`
/** A quoted local part, without < and >, which nodemailer replaces. */
const QUOTED = '"(?:[ !#-;=?-\\[\\]-~]|\\\\[ -;=?-~])*"'
const LITERAL = '\\[[!-Z^-~]+\\]'
const ADDRESS = new RegExp(`^(?=.{1,254}$)(?:${DOT_ATOM}|${QUOTED})(?<=^.{1,64})@(?:${DOT_ATOM}|${LITERAL})$`)

/** True for an address such as ada@example.com. It has no line break and no other control character. */
export function isEmailAddress(text: string): boolean {
  return ADDRESS.test(text)
}
