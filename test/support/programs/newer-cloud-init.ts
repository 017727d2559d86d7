/**
 * The cloud-init of Debian's next release, unpacked beside the system: that of Debian 12 does not read a network
 * configuration over HTTP.
 */
import { execFileSync } from 'node:child_process'
import { mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** The release that has it, and the key of which Debian signs it. */
const [RELEASE, KEYRING] = ['trixie', '/usr/share/keyrings/debian-archive-keyring.gpg']

/**
 * Downloads and unpacks it into a folder. Returns the command that runs it, or, as `missing`, why it cannot be had here.
 */
export function newerCloudInit(directory: string): { command: readonly string[] } | { missing: string } {
  for (const folder of ['state/lists/partial', 'cache/archives/partial', 'parts', 'root'])
    mkdirSync(join(directory, folder), { recursive: true })
  const run = (command: string, args: readonly string[]) =>
    execFileSync(command, args, { cwd: directory, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
  try {
    // the mirror that this machine uses
    const [site] = run('apt-get', ['indextargets', '--format', '$(SITE)']).split('\n')
    writeFileSync(join(directory, 'sources.list'), `deb [signed-by=${KEYRING}] ${site!} ${RELEASE} main\n`)
    const apt = [
      ['Dir::State', 'state'],
      ['Dir::Cache', 'cache'],
      ['Dir::Etc::sourcelist', 'sources.list'],
      ['Dir::Etc::sourceparts', 'parts'],
      ['Acquire::Languages', 'none'],
    ].flatMap(([name, value]) => ['-o', `${name!}=${name!.startsWith('Dir') ? join(directory, value!) : value!}`])
    run('apt-get', [...apt, '-qq', 'update'])
    run('apt-get', [...apt, '-qq', 'download', 'cloud-init'])
    const [deb] = readdirSync(directory).filter((name) => name.endsWith('.deb'))
    run('dpkg-deb', ['-x', deb!, 'root'])
  } catch (error) {
    return { missing: `Debian's ${RELEASE} cannot be downloaded: ${String(error).slice(0, 200)}` }
  }
  const python = join(directory, 'root/usr/lib/python3/dist-packages')
  return { command: ['env', `PYTHONPATH=${python}`, '/usr/bin/python3', join(directory, 'root/usr/bin/cloud-init')] }
}
