/** A package of another release of Debian, unpacked beside the system. */
import { execFileSync } from 'node:child_process'
import { globSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** The key of which Debian signs its releases. */
const KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg'

/**
 * Downloads a package, without what it needs, into a folder and unpacks it there. Returns its root directory, or, as
 * `missing`, why it cannot be had here.
 */
export function unpackRelease(
  directory: string,
  release: string,
  name: string,
): { root: string } | { missing: string } {
  for (const folder of ['state/lists/partial', 'cache/archives/partial', 'parts', 'root'])
    mkdirSync(join(directory, folder), { recursive: true })
  const archives = join(directory, 'cache/archives')
  const run = (command: string, args: readonly string[]) =>
    execFileSync(command, args, { cwd: archives, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
  try {
    // the mirror that this machine uses
    const [site] = run('apt-get', ['indextargets', '--format', '$(SITE)']).split('\n')
    writeFileSync(join(directory, 'sources.list'), `deb [signed-by=${KEYRING}] ${site!} ${release} main\n`)
    writeFileSync(join(directory, 'status'), '')
    const apt = [
      ['Dir::State', 'state'],
      ['Dir::State::status', 'status'], // nothing is installed
      ['Dir::Cache', 'cache'],
      ['Dir::Etc::sourcelist', 'sources.list'],
      ['Dir::Etc::sourceparts', 'parts'],
      ['Acquire::Languages', 'none'],
    ].flatMap(([name, value]) => ['-o', `${name!}=${name!.startsWith('Dir') ? join(directory, value!) : value!}`])
    run('apt-get', [...apt, '-qq', 'update'])
    run('apt-get', [...apt, '-qq', 'download', name])
    const root = join(directory, 'root')
    for (const deb of globSync(join(archives, '*.deb'))) run('dpkg-deb', ['-x', deb, root])
    return { root }
  } catch (error) {
    return { missing: `Debian's ${release} cannot be downloaded: ${String(error).slice(0, 200)}` }
  }
}
