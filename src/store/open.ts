/**
 * The library that a control plane imports: `import { openStore } from 'imds'`.
 */
import type { Publisher } from './publish.ts'
import { openFilePublisher } from './publish-files.ts'
import { openRedisPublisher } from './publish-redis.ts'
import { parseStoreUrl, STORE_URL_FORMS, USER_DATA_MAX_BYTES } from './url.ts'

export type { Fault, Instance } from '../metadata/instance.ts'
export { InstanceSchema, parse } from '../metadata/instance.ts'
export { USER_DATA_MAX_BYTES } from './url.ts'
export type { Listed, Published, Publisher, PutRefusal, PutResult, RemoveResult, UserDataChange } from './publish.ts'

/** How to open a store. */
export interface StoreSettings {
  /** `redis://` or `rediss://` (see connection.ts), or `file:` with a directory. */
  readonly url: string
  /** The region whose instances these are; needed for Redis. */
  readonly region?: string | undefined
  /** A file with Redis' password in its first line. */
  readonly passwordFile?: string | undefined
  /** Default USER_DATA_MAX_BYTES. */
  readonly userDataMaxBytes?: number | undefined
}

/** Opens a store for reading and writing. Rejects, with a message for people, when it cannot be used. */
export async function openStore({ url, region, passwordFile, userDataMaxBytes = USER_DATA_MAX_BYTES }: StoreSettings): Promise<Publisher> {
  const store = parseStoreUrl(url)
  if (store === undefined) throw new Error(`a store is ${STORE_URL_FORMS}`)
  if (store.kind === 'files') return openFilePublisher(store.directory, userDataMaxBytes)
  if (region === undefined) throw new Error('Redis needs the name of the region')
  return openRedisPublisher({ url, ...passwordFile !== undefined && { passwordFile } }, region, userDataMaxBytes)
}
