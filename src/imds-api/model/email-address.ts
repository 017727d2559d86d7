/**
 * E-mail addresses: the addr-spec of RFC 2822 without comments, folding, obsolete forms and domain literals, and with
 * the lengths of SMTP (RFC 5321, 4.5.3.1).
 */

const ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
const DOT_ATOM = `${ATOM}(?:\\.${ATOM})*`
/** A quoted local part, without < and >, which nodemailer replaces. */
const QUOTED = '"(?:[ !#-;=?-\\[\\]-~]|\\\\[ -;=?-~])*"'
const ADDRESS = new RegExp(`^(?=.{1,254}$)(?:${DOT_ATOM}|${QUOTED})(?<=^.{1,64})@${DOT_ATOM}$`)

/**
 * True for an address such as ada@example.com. It has no line break and no other control character. An address in
 * brackets is none of a mail domain (x@[127.0.0.1]): an invitation would have the mail server connect to any host.
 */
export function isEmailAddress(text: string): boolean {
  return ADDRESS.test(text)
}
