/**
 * Opens a store for reading and writing. Loads only the modules that this kind of store needs, so that imdsctl starts
 * fast.
 */
import { FILE_SYSTEM } from './files/operations.ts'
import type { Publisher } from './publisher.ts'
import { parseRecordKeys, RecordCipher } from './crypto/record-cipher.ts'
import { formatSettingFaults, parseStoreSettings, DEFAULT_USER_DATA_BYTES, type StoreSettings } from './settings.ts'

export type { Instance } from '../metadata/instance.ts'
export type { Fault } from '../metadata/record.ts'
export { DEFAULT_USER_DATA_BYTES, type StoreSettings } from './settings.ts'
export type { ControlPlane, Fleet } from './fleet.ts'
export type { RedisFiles } from './url.ts'
export type * from './publisher.ts'
import { readTextFile } from '../runtime/text-file.ts'
export type { UserDataChange } from './user-data.ts'

/** Opens a store. Rejects when it cannot be used; the message names what is wrong. */
export async function openStore(settings: StoreSettings): Promise<Publisher> {
  const parsed = parseStoreSettings(settings)
  if (!parsed.ok) throw new Error(formatSettingFaults(parsed.faults))
  const { value: store } = parsed
  const { userDataMaxBytes = DEFAULT_USER_DATA_BYTES, recordKeysFile } = settings
  if (store.kind === 'files')
    return (await import('./files/publisher.ts')).openFilePublisher(
      store.directory,
      userDataMaxBytes,
      FILE_SYSTEM,
      Date.now,
    )
  const { openRedisPublisher } = await import('./redis/publisher.ts')
  const cipher = recordKeysFile === undefined ? undefined : cipherOf(recordKeysFile, store.region)
  return openRedisPublisher(settings, store.region, userDataMaxBytes, cipher)
}

function cipherOf(path: string, region: string): RecordCipher {
  const parsed = parseRecordKeys(readTextFile(path))
  if (!parsed.ok) throw new Error(`${path} ${parsed.faults.join('; ')}`)
  return new RecordCipher(parsed.value, region)
}
