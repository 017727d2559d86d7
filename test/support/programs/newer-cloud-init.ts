/**
 * The cloud-init of Debian's next release, unpacked beside the system: that of Debian 12 does not read a network
 * configuration over HTTP.
 */
import { join } from 'node:path'
import { unpackRelease } from './debian-release.ts'

/**
 * Downloads and unpacks it into a folder. Returns the command that runs it, or, as `missing`, why it cannot be had here.
 */
export function newerCloudInit(directory: string): { command: readonly string[] } | { missing: string } {
  const unpacked = unpackRelease(directory, 'trixie', 'cloud-init')
  if ('missing' in unpacked) return unpacked
  const python = join(unpacked.root, 'usr/lib/python3/dist-packages')
  return { command: ['env', `PYTHONPATH=${python}`, '/usr/bin/python3', join(unpacked.root, 'usr/bin/cloud-init')] }
}
