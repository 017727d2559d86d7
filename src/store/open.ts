/**
 * The library that a control plane imports: `import { openStore } from 'imds'`.
 */
import type { Publisher } from './publish.ts'
import { openFilePublisher } from './publish-files.ts'
import { openRedisPublisher } from './publish-redis.ts'
import { fileFaults, parseStoreUrl, STORE_URL_FORMS, USER_DATA_MAX_BYTES, type RedisFiles } from './url.ts'

export type { Fault, Instance } from '../metadata/instance.ts'
export { InstanceSchema, parse } from '../metadata/instance.ts'
export { USER_DATA_MAX_BYTES, type RedisFiles } from './url.ts'
export type { Listed, Published, Publisher, PutRefusal, PutResult, RemoveResult, SealResult, UserDataChange } from './publish.ts'

/** How to open a store. */
export interface StoreSettings extends RedisFiles {
  /** Redis in any shape, or `file:` with a directory: see url.ts. */
  readonly url: string
  /** The region whose instances these are; needed for Redis. */
  readonly region?: string | undefined
  /** Default USER_DATA_MAX_BYTES. */
  readonly userDataMaxBytes?: number | undefined
}

/** Opens a store for reading and writing. Rejects, with a message for people, when it cannot be used. */
export async function openStore({ url, region, userDataMaxBytes = USER_DATA_MAX_BYTES, ...files }: StoreSettings): Promise<Publisher> {
  const store = parseStoreUrl(url)
  if (store === undefined) throw new Error(`a store is ${STORE_URL_FORMS}`)
  if (store.kind === 'files') return openFilePublisher(store.directory, userDataMaxBytes)
  if (region === undefined) throw new Error('Redis needs the name of the region')
  const faults = fileFaults(store, files)
  if (faults.length > 0) throw new Error(faults.map(({ file, message }) => `${file} ${message}`).join('; '))
  return openRedisPublisher({ url, ...files }, region, userDataMaxBytes)
}
