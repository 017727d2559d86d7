/**
 * The blocks of commands that set up or change a host, as one pastes them into a shell, with a failure at each step: they stop there. (region-in-an-hour
 * does that on real hosts for those that change a password or move a region, and for the last steps of a replacement.)
 * Programs do nothing but note their calls, and what the blocks write is in a directory of the test.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { shortDirectory } from '../support/test-directory.ts'
import { executed } from '../tools/documents.ts'

const PROGRAM = `#!/bin/sh
printf '%s\\n' "\${0##*/} $*" >> "$CALLS"
[ "$(wc -l < "$CALLS")" -ne "$FAILS" ]
`

/** Where docs/region.md writes, and what its earlier blocks have written. */
const WRITTEN = [
  'root/region',
  'etc/imds',
  'etc/apt/sources.list.d',
  'etc/redis',
  'etc/prometheus',
  'usr/share/doc/imds/examples',
]
const READ = [
  ...['admin', 'imds-publisher', 'imds-hv1', 'imds-hv2', 'database'].map((user) => `root/region/${user}.password`),
  'root/region/ca.crt',
  'etc/imds/provisioning.secret',
]

for (const [document, name, calls] of [
  ['docs/operations/jobs.md', 'upgrade', 7],
  ['docs/operations/jobs.md', 'replace', 8],
  ['docs/operations/jobs.md', 'replace with imds-api', 10],
  ['docs/operations/imds-api.md', 'upgrade-api', 6],
  ['docs/install.md', 'listen', 8],
  ['docs/install.md', 'listen no longer', 9],
  ['docs/firewall.md', 'install', 6],
  ['docs/firewall.md', 'take out', 4],
  ['docs/operations/imds-api.md', 'backup', 2],
  ['docs/operations/imds-api.md', 'restore', 3],
  ['docs/region.md', 'packages', 5],
  ['docs/region.md', 'keys', 10],
  ['docs/region.md', 'redis', 10],
  ['docs/region.md', 'postgresql', 4],
  ['docs/region.md', 'control plane', 14],
  ['docs/region.md', 'copy', 4],
  ['docs/region.md', 'hypervisor', 6],
  ['docs/region.md', 'create', 3],
  ['docs/region.md', 'prometheus', 5],
  ['docs/region.md', 'restart control', 3],
  ['docs/region.md', 'restart hypervisor', 3],
] as const)
  t.test(`${document}, ${name}: the block stops at the step that fails, and names the host`, (t) => {
    const directory = shortDirectory(t)
    for (const program of [
      'ssh',
      'imdsctl',
      'imds-api',
      'redis-cli',
      'rm',
      'sleep',
      'sed',
      'install',
      'systemctl',
      'imdsd',
      'apt-get',
      'nft',
      'runuser',
      ...['openssl', 'mkdir', 'cp', 'curl', 'promtool', 'getent'],
      'mv',
    ])
      writeFileSync(join(directory, program), PROGRAM, { mode: 0o755 })
    writeFileSync(join(directory, 'region.dump'), '')
    const files = join(directory, 'files')
    for (const path of WRITTEN) mkdirSync(join(files, path), { recursive: true })
    for (const file of READ) writeFileSync(join(files, file), 'x\n')
    const file = join(directory, 'calls')
    const code = executed(document, name).replaceAll(/(?<=[ '(])\/(?=root\/|etc\/|usr\/share\/)/g, `${files}/`)
    const run = (fails: number) => {
      rmSync(file, { force: true })
      const ran = spawnSync('sh', ['-c', code], {
        cwd: directory,
        encoding: 'utf8',
        env: {
          PATH: `${directory}:/usr/bin:/bin`,
          CALLS: file,
          FAILS: String(fails),
          version: '1',
        },
      })
      return { ...ran, calls: existsSync(file) ? readFileSync(file, 'utf8').trimEnd().split('\n') : [] }
    }
    const whole = run(0)
    t.same([whole.status, whole.calls.length], [0, calls], whole.stderr)
    for (const [i, call] of whole.calls.entries()) {
      const { status, stderr, calls: made } = run(i + 1)
      // cannot fail, is repeated, or decides what the next command does
      if (/^(sleep|nft|getent) /.test(call)) continue
      t.not(status, 0, call)
      t.same(made, whole.calls.slice(0, i + 1))
      const [, host] = /^ssh (\S+)/.exec(call) ?? []
      if (host !== undefined && name.startsWith('upgrade')) t.match(stderr, `stopped at ${host}\n`)
    }
    t.end()
  })
