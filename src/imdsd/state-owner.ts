/** Whose files the state directory has, and with which keys they are written, by the configuration. */
import type { StoreConfig } from './config.ts'
import { RecordCipher } from '../store/crypto/record-cipher.ts'
import type { StateKeys, StateOwner } from './journal/state-files.ts'

/** The owner of the files of a daemon with this store. */
export function stateOwner(store: StoreConfig): StateOwner {
  const { hypervisor } = store
  return store.kind === 'redis'
    ? { store: 'redis', region: store.region, hypervisor }
    : { store: `file:${store.directory}`, region: undefined, hypervisor }
}

/** The keys of the files: derived from the record keys, or else the keys of session tokens. */
export function stateKeys(store: StoreConfig, tokenKeys: readonly Uint8Array[]): StateKeys {
  const cipher =
    store.kind === 'files' || store.recordKeys === undefined
      ? undefined
      : new RecordCipher(store.recordKeys, store.region)
  return { cipher, macKeys: cipher?.macKeys(store.hypervisor ?? '') ?? tokenKeys }
}
