/** The names of the files in the state directory, whose they are, and their keys. */
import { join } from 'node:path'
import type { KeyObject } from 'node:crypto'
import type { RecordCipher } from '../../store/crypto/record-cipher.ts'

/** The owner of the journal. That of another hypervisor, region or store is not served. */
export interface StateOwner {
  readonly store: string
  readonly region: string | undefined
  readonly hypervisor: string | undefined
}

/**
 * `cipher` encrypts the journal (undefined: it is plain). The first of `macKeys`, of any length, authenticates what is
 * written, and all of them verify.
 */
export interface StateKeys {
  readonly cipher: RecordCipher | undefined
  readonly macKeys: readonly (Uint8Array | KeyObject)[]
}

export function journalPath(stateDirectory: string): string {
  return join(stateDirectory, 'view.journal')
}

export function lockPath(stateDirectory: string): string {
  return join(stateDirectory, 'view.lock')
}

/** The journal while it is rewritten. A kill may leave it. */
export function temporaryOf(journal: string): string {
  return `${journal}.tmp`
}

/** The names that a start deletes: files that a kill or a former version has left. They may have user-data. */
export function leftFiles(names: readonly string[]): string[] {
  return names.filter((name) => name.startsWith('view.') && name !== 'view.lock' && name !== 'view.journal')
}
