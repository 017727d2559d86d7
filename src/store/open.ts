/**
 * Opens a store for writing. What a kind of store needs is loaded when one is opened: imdsctl's start depends on it.
 */
import { readFileSync } from 'node:fs'
import { isName } from '../metadata/identifiers.ts'
import { FILE_SYSTEM } from './files/operations.ts'
import type { Publisher } from './publisher.ts'
import { parseRecordKeys, RecordCipher } from './crypto/record-cipher.ts'
import { fileFaults, parseStoreUrl, STORE_URL_FORMS, USER_DATA_MAX_BYTES, type RedisFiles } from './url.ts'

export type { Instance } from '../metadata/instance.ts'
export type { Fault } from '../metadata/record.ts'
export { USER_DATA_MAX_BYTES, type RedisFiles } from './url.ts'
export type { AnnouncedHypervisor, DecryptResult, EncryptResult, Listed, Published, Publisher, PutOptions, PutRefusal, PutResult, RemoveResult, SealResult } from './publisher.ts'
export type { UserDataChange } from './user-data.ts'

/** How to open a store. */
export interface StoreSettings extends RedisFiles {
  /** Redis in any shape, or `file:` with a directory: see url.ts. */
  readonly url: string
  /** The region whose instances these are; needed for Redis. */
  readonly region?: string | undefined
  /** Default USER_DATA_MAX_BYTES. */
  readonly userDataMaxBytes?: number | undefined
  /** A file of keys (record-cipher.ts), for Redis alone: records and user-data are encrypted with the first, and nothing else is believed. Read once. */
  readonly recordKeysFile?: string | undefined
}

/** Opens a store for reading and writing. Rejects, with a message for people, when it cannot be used. */
export async function openStore({ url, region, userDataMaxBytes = USER_DATA_MAX_BYTES, recordKeysFile, ...files }: StoreSettings): Promise<Publisher> {
  const store = parseStoreUrl(url)
  if (store === undefined) throw new Error(`a store is ${STORE_URL_FORMS}`)
  if (store.kind === 'files' && recordKeysFile !== undefined) throw new Error('record keys are for Redis: records in files are not encrypted')
  if (store.kind === 'files') return (await import('./files/publisher.ts')).openFilePublisher(store.directory, userDataMaxBytes, FILE_SYSTEM)
  if (region === undefined || !isName(region)) throw new Error('Redis needs the name of the region (--region, IMDS_REGION): one word of letters, digits, ".", "_" and "-", at most 63')
  const faults = fileFaults(store, files)
  if (faults.length > 0) throw new Error(faults.map(({ file, message }) => `${file} ${message}`).join('; '))
  const { openRedisPublisher } = await import('./redis/publisher.ts')
  return openRedisPublisher({ url, ...files }, region, userDataMaxBytes, recordKeysFile === undefined ? null : cipherOf(recordKeysFile, region))
}

function cipherOf(path: string, region: string): RecordCipher {
  const parsed = parseRecordKeys(readFileSync(path, 'utf8'))
  if (!parsed.ok) throw new Error(`${path} ${parsed.faults.join('; ')}`)
  return new RecordCipher(parsed.value, region)
}
