/**
 * The blocks of commands that change a hypervisor or a fleet, as one pastes them into a shell, with a failure at each step: they stop there.
 * Programs do nothing but note their calls.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { shortDirectory } from '../support/test-directory.ts'
import { executed } from '../tools/documents.ts'

/** Prints OK, as redis-cli does for a change, unless it is the call that fails. The status of redis-cli is 0 then too. */
const PROGRAM = `#!/bin/sh
printf '%s\\n' "\${0##*/} $*" >> calls
if [ "$(wc -l < calls)" -ne "$FAILS" ]; then
  # what was listed once has moved, and is not listed again
  [ "\${0##*/}" = imdsctl ] && [ "$(grep -cxF "imdsctl $*" calls)" -gt 1 ] || echo OK
  exit
fi
[ "\${0##*/}" = redis-cli ]
`

for (const [document, name, calls] of [
  ['docs/operations/jobs.md', 'upgrade', 7],
  ['docs/operations/jobs.md', 'move a region', 7],
  ['docs/operations/jobs.md', 'rotate a password', 12],
  ['docs/operations/jobs.md', 'replace', 9],
  ['docs/operations/jobs.md', 'replace with imds-api', 11],
  ['docs/operations/imds-api.md', 'upgrade-api', 6],
  ['docs/install.md', 'listen', 8],
  ['docs/install.md', 'listen no longer', 9],
  ['docs/firewall.md', 'install', 6],
  ['docs/firewall.md', 'take out', 4],
  ['docs/operations/imds-api.md', 'backup', 2],
  ['docs/operations/imds-api.md', 'restore', 4],
] as const)
  t.test(`${document}, ${name}: the block stops at the step that fails, and names the host`, (t) => {
    const directory = shortDirectory(t)
    for (const program of [
      'ssh',
      'imdsctl',
      'imds-api',
      'redis-cli',
      'migrate',
      'rm',
      'sleep',
      'sed',
      'install',
      'systemctl',
      'imdsd',
      'apt-get',
      'nft',
      'runuser',
      'mv',
    ])
      writeFileSync(join(directory, program), PROGRAM, { mode: 0o755 })
    writeFileSync(join(directory, 'region.dump'), '')
    for (const secret of ['admin', 'new']) writeFileSync(join(directory, secret), `${secret}\n`)
    const file = join(directory, 'calls')
    const run = (fails: number) => {
      rmSync(file, { force: true })
      const ran = spawnSync('sh', ['-c', executed(document, name)], {
        cwd: directory,
        encoding: 'utf8',
        env: {
          PATH: `${directory}:/usr/bin:/bin`,
          FAILS: String(fails),
          ...{
            version: '1',
            address: 'fd00::1',
            servers: 'redis://x redis://y',
            user: 'imds-hv1',
            admin: 'admin',
            new: 'new',
          },
        },
      })
      return { ...ran, calls: existsSync(file) ? readFileSync(file, 'utf8').trimEnd().split('\n') : [] }
    }
    const whole = run(0)
    t.same([whole.status, whole.calls.length], [0, calls], whole.stderr)
    for (const [i, call] of whole.calls.entries()) {
      const { status, stderr, calls: made } = run(i + 1)
      if (/^(sleep|nft) |ACL SAVE$/.test(call)) continue // cannot fail, is repeated, or is followed by CONFIG REWRITE
      t.not(status, 0, call)
      t.same(made, whole.calls.slice(0, i + 1))
      const [, host] = /^ssh (\S+)/.exec(call) ?? []
      if (host !== undefined && name !== 'replace' && name !== 'replace with imds-api')
        t.match(stderr, `stopped at ${host}\n`)
    }
    if (name === 'rotate a password')
      for (const secret of ['new', 'admin']) {
        writeFileSync(join(directory, secret), '')
        t.same(run(0).calls, [], 'an empty password is not given')
        writeFileSync(join(directory, secret), `${secret}\n`)
      }
    t.end()
  })
