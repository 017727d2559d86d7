/**
 * Which unix sockets the firewall agent trusts, and in which directories root creates files. firewall-keeping.test.ts and
 * test/redis/import.test.ts show that the programs ask.
 */
import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { findDistrust, findDistrustOfDirectory } from '../../src/runtime/trusted-path.ts'

const skip = process.getuid?.() !== 0 && 'needs root, to give files to other users'
const [IMDS, NOBODY] = [990, 65_534]

/** A directory with a socket `run/operator.sock`, which belongs to IMDS. */
async function aHost(t: Test) {
  const root = mkdtempSync(join(tmpdir(), 'imds-trust-'))
  const [run, socket] = [join(root, 'run'), join(root, 'run/operator.sock')]
  mkdirSync(run, { mode: 0o750 })
  const server = createServer().listen(socket)
  await once(server, 'listening')
  t.teardown(() => {
    server.close()
    rmSync(root, { recursive: true, force: true })
  })
  chmodSync(root, 0o755)
  chownSync(run, IMDS, IMDS)
  chownSync(socket, IMDS, IMDS)
  chmodSync(socket, 0o660)
  return { root, run, socket }
}

t.test(
  'a socket is trusted if it and its directory belong to one user, below directories of root',
  { skip },
  async (t) => {
    const { run, socket } = await aHost(t)
    for (const uid of [0, IMDS]) t.equal(findDistrust(socket, uid), undefined)
    chownSync(socket, 0, 0)
    t.equal(findDistrust(socket, 0), undefined, 'or the socket belongs to root')
    chownSync(run, 0, 0)
    t.equal(findDistrust(socket, 0), undefined, 'or both do')
  },
)

t.test('a socket that another user can make or replace is not trusted', { skip }, async (t) => {
  const cases: [string, (host: { root: string; run: string; socket: string }) => void, RegExp][] = [
    [
      'its directory is writable for all',
      ({ run }) => chmodSync(run, 0o777),
      /^other users than its owner can change the directory \S+\/run \(mode 777\)$/,
    ],
    [
      'its directory is writable for a group',
      ({ run }) => chmodSync(run, 0o770),
      /change the directory \S+\/run \(mode 770\)$/,
    ],
    [
      'its directory is sticky, so that anyone can make it',
      ({ run }) => chmodSync(run, 0o1777),
      /operator.sock belongs to the user with the id 990/,
    ],
    [
      'a directory above is writable for all',
      ({ root }) => chmodSync(root, 0o777),
      /change the directory \S+ \(mode 777\)$/,
    ],
    [
      'a directory above is sticky, so that anyone can make its directory',
      ({ root }) => chmodSync(root, 0o1777),
      /run belongs to the user with the id 990/,
    ],
    [
      'a directory above belongs to another user',
      ({ root }) => chownSync(root, NOBODY, NOBODY),
      /belongs to the user with the id 65534/,
    ],
    [
      'it belongs to another user than its directory',
      ({ socket }) => chownSync(socket, NOBODY, NOBODY),
      /operator.sock belongs to the user with the id 65534/,
    ],
    [
      'it is a file',
      ({ socket }) => {
        rmSync(socket)
        writeFileSync(socket, '')
      },
      /is no socket$/,
    ],
  ]
  for (const [what, change, reason] of cases) {
    const host = await aHost(t)
    change(host)
    t.match(findDistrust(host.socket, 0), reason, what)
  }
})

t.test('a symbolic link is not trusted, in place of a directory or of the socket', { skip }, async (t) => {
  const { root, run, socket } = await aHost(t)
  symlinkSync(run, join(root, 'link'))
  t.match(findDistrust(join(root, 'link/operator.sock'), 0), /link is a symbolic link: name the real path$/)
  symlinkSync(socket, join(root, 'other.sock'))
  t.match(findDistrust(join(root, 'other.sock'), 0), /other.sock is a symbolic link/)
  t.match(findDistrust(join(root, '../', root.split('/').at(-1)!, 'link/operator.sock'), 0), /is a symbolic link/)
})

t.test('root creates files only below directories that no other user can replace', { skip }, async (t) => {
  const { root, run } = await aHost(t)
  const own = join(root, 'own')
  mkdirSync(own)
  t.equal(findDistrustOfDirectory(own), undefined)
  t.match(findDistrustOfDirectory(run), /run belongs to the user with the id 990, who can replace what is there/)
  symlinkSync(own, join(root, 'link'))
  t.match(findDistrustOfDirectory(join(root, 'link')), /link is a symbolic link: name the real path$/)
  chmodSync(own, 0o1777)
  t.equal(findDistrustOfDirectory(own), undefined, 'as /tmp')
  chmodSync(own, 0o777)
  t.match(findDistrustOfDirectory(own), /other users than its owner can change the directory/)
  chownSync(root, NOBODY, NOBODY)
  t.match(findDistrustOfDirectory(own), /belongs to the user with the id 65534/)
})

t.test('what does not exist is left to the connection, which fails with the reason', (t) => {
  t.equal(findDistrust('/nowhere/operator.sock', 0), undefined)
  t.end()
})
