/**
 * Which store does a URL name? Pure: nothing is opened.
 */
import { fileURLToPath } from 'node:url'

/** The user-data limit unless another is configured: EC2's own, in bytes (reference/imds.md 10). */
export const USER_DATA_MAX_BYTES = 16384

/** How a store is written, for messages. */
export const STORE_URL_FORMS = 'redis://HOST[:PORT], rediss://HOST[:PORT] or file:DIRECTORY'

/** What a store's URL means; undefined for one that we do not know. */
export function parseStoreUrl(url: string): { readonly kind: 'redis' } | { readonly kind: 'files', readonly directory: string } | undefined {
  if (url.startsWith('file:')) {
    const directory = url.startsWith('file://') ? pathOfFileUrl(url) : url.slice('file:'.length)
    return directory === undefined || directory === '' ? undefined : { kind: 'files', directory }
  }
  return /^rediss?:\/\/[^/]/.test(url) && URL.canParse(url) ? { kind: 'redis' } : undefined
}

function pathOfFileUrl(url: string): string | undefined {
  try {
    return fileURLToPath(url)
  } catch {
    return undefined
  }
}
