/** URLs of web pages and APIs in the configuration, which clients or people get to see. */

/**
 * What is wrong with a URL: it has no form of http://HOST or https://HOST, or it has a user or a password in it.
 * Undefined: nothing.
 */
export function faultOfWebUrl(text: string): 'form' | 'credentials' | undefined {
  // the parser accepts https:host and drops tabs
  if (!/^https?:\/\/[^/?#\s\\][^\s\\]*$/i.test(text) || !URL.canParse(text)) return 'form'
  const { username, password } = new URL(text)
  return username === '' && password === '' ? undefined : 'credentials'
}
