/** The user_data of a server: base64 in JSON, kept as it was sent, and decoded when it is published. */
import { USER_DATA_MAX_BYTES } from '../../store/settings.ts'
import { refuse, type Refusal } from '../refusal.ts'

/** Checks user_data. Returns it as it was sent, with null for none. */
export function checkUserData(text: string | null): string | null | Refusal {
  if (text === null) return null
  const base64 = text.replaceAll(/\s/g, '') // the CLI writes line breaks
  if (!/^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?$/.test(base64)) return refuse('unprocessable_entity', 'user_data must be base64')
  const { length } = decodeUserData(text)
  if (length > USER_DATA_MAX_BYTES) {
    return refuse('unprocessable_entity', `user_data must be at most ${String(USER_DATA_MAX_BYTES)} bytes; it is ${String(length)}`)
  }
  return text
}

/** The bytes that the guest gets. */
export function decodeUserData(text: string): Buffer {
  return Buffer.from(text, 'base64')
}
