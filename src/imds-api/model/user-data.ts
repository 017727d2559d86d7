/** The user_data of a server: base64 in JSON, kept without white space, and decoded when it is published. */
import { DEFAULT_USER_DATA_BYTES } from '../../store/settings.ts'
import { fieldFault, type Detail } from './refusal.ts'

/**
 * The form in which user_data is kept: without the white space that clients send, such as line breaks, and with + and /
 * in place of - and _ (RFC 4648, 5). The bytes are the same.
 */
export function compactUserData(text: string): string {
  return text.replaceAll(/\s/g, '').replaceAll('-', '+').replaceAll('_', '/')
}

/** What is wrong with user_data, or undefined. */
export function userDataFault(text: string): Detail | undefined {
  const base64 = compactUserData(text)
  if (!/^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?$/.test(base64))
    return fieldFault('user_data', 'malformed', 'user_data must be base64')
  const { length } = decodeUserData(text)
  return length > DEFAULT_USER_DATA_BYTES
    ? fieldFault('user_data', 'too_long', `user_data must be at most ${DEFAULT_USER_DATA_BYTES} bytes; it is ${length}`)
    : undefined
}

/** The bytes that the guest gets. */
export function decodeUserData(text: string): Buffer {
  return Buffer.from(text, 'base64')
}
