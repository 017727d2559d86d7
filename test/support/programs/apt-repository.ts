/** An apt repository with versions of our packages, as `npm run release` makes it. */
import { cpSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { buildImds, buildNode } from '../../../deploy/debian/build.ts'
import { ROOT } from '../../tools/documents.ts'
import { shortDirectory } from '../test-directory.ts'
import { buildInto } from './imds.ts'
import { must } from './processes.ts'

/** Makes a repository. Returns its directory, for serveDirectory. */
export async function makeRepository(t: Test, versions: readonly string[]): Promise<string> {
  const directory = shortDirectory(t)
  const dist = join(directory, 'dist')
  const deb = join(directory, 'www/deb')
  const keyring = join(directory, 'keyring')
  for (const path of [dist, deb]) mkdirSync(path, { recursive: true })
  mkdirSync(keyring, { mode: 0o700 })
  buildInto(dist)
  const options = { directory: deb, maintainer: 'imds <imds@imds.invalid>', compression: ['-Zzstd', '-z1'] }
  buildNode(options)
  for (const version of versions) {
    const copy = join(directory, version)
    cpSync(dist, copy, { recursive: true })
    await must(['sh', '-euc', 'sed -i "s/^const VERSION = .*/const VERSION = \\"$1\\"/" "$0"/*/*.js', copy, version])
    buildImds({ ...options, dist: copy, version })
  }
  const env = { ...process.env, GNUPGHOME: keyring, SOURCE_DATE_EPOCH: '1700000000' }
  t.teardown(() => must(['gpgconf', '--kill', 'all'], { env }))
  await must(['gpg', '--batch', '--passphrase', '', '--quick-generate-key', 'imds', 'ed25519', 'sign', 'never'], {
    env,
  })
  await must([join(ROOT, 'deploy/apt-repository.sh'), deb, 'imds'], { env })
  writeFileSync(join(directory, 'www/imds.asc'), await must(['gpg', '--armor', '--export', 'imds'], { env }))
  return join(directory, 'www')
}
