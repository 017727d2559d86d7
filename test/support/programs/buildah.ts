/**
 * Buildah with images of its own. No registry can be reached: the base `localhost/base` has files of this machine, laid
 * out as in node:26-slim.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import { must } from './processes.ts'

/** A base: Node.js with npm beside it, a shell, the programs that the Dockerfile runs, and their libraries. */
const BASE = `
mkdir -p usr/bin usr/sbin usr/lib usr/lib64 usr/local/bin usr/local/lib/node_modules/npm etc dev proc sys run opt var/lib
mkdir -m 1777 tmp
ln -s usr/bin usr/sbin usr/lib usr/lib64 .
cp "$1" usr/local/bin/node
echo '{}' > usr/local/lib/node_modules/npm/package.json
ln -s ../lib/node_modules/npm/package.json usr/local/bin/npm
for program in sh chmod install mkdir mv readlink rm; do cp -L "$(command -v $program)" usr/bin; done
ldd usr/local/bin/node usr/bin/* | grep -o '/[^ ]*\\.so[^ ]*' | sort -u | while read -r library; do
  mkdir -p ".\${library%/*}" && cp -L "$library" ".$library"
done
printf 'root:x:0:0::/root:/bin/sh\\nnode:x:1000:1000::/home/node:/bin/sh\\n' > etc/passwd
printf 'root:x:0:\\nnode:x:1000:\\n' > etc/group
`

/** Makes the base in a new directory. `env` is for commands that use Buildah. All of it goes away with the test. */
export async function prepareBuildah(t: Test): Promise<{
  readonly directory: string
  readonly env: NodeJS.ProcessEnv
  /** Runs Buildah, and returns its output. */
  readonly buildah: (...args: string[]) => Promise<string>
}> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-image-'))
  const storage = join(directory, 'storage.conf')
  writeFileSync(storage, `[storage]\ndriver = "vfs"\ngraphroot = "${directory}/images"\nrunroot = "${directory}/run"\n`)
  const env = {
    PATH: process.env['PATH'],
    HOME: directory,
    TMPDIR: directory,
    CONTAINERS_STORAGE_CONF: storage,
    BUILDAH_ISOLATION: 'chroot',
  }
  const buildah = async (...args: string[]) => (await must(['buildah', ...args], { env })).toString().trim()
  t.teardown(async () => {
    await buildah('rm', '--all')
    rmSync(directory, { recursive: true })
  })
  const base = join(directory, 'base')
  mkdirSync(base)
  await must(['sh', '-euc', `cd ${base}\n${BASE}`, 'sh', process.execPath])
  writeFileSync(join(directory, 'Dockerfile'), 'FROM scratch\nCOPY . /\n')
  await buildah('build', '--quiet', '--tag', 'localhost/base', '--file', join(directory, 'Dockerfile'), base)
  return { directory, env, buildah }
}
