import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, expect, test } from 'vitest'
import { ownTokenKey } from '../../../../src/imdsd/guest/token-key.ts'
import { collectLog } from '../../../support/fixtures/collected-log.ts'
import { temporaryDirectory } from '../../../support/fixtures/temporary-directory.ts'

let state: string
let log: { level: number; msg: string; reason?: string }[]
const logger = collectLog(() => log)
const path = () => join(state, 'token-key')
const key = () => Buffer.from(ownTokenKey(state, logger)).toString('base64')

beforeEach(() => {
  state = join(temporaryDirectory(), 'state')
  log = []
})

test('the first start makes a key of 32 bytes in a file that only its owner can read', () => {
  const first = key()
  expect(Buffer.from(first, 'base64')).toHaveLength(32)
  expect(readFileSync(path(), 'utf8')).toBe(`${first}\n`)
  expect([statSync(state).mode & 0o777, statSync(path()).mode & 0o777]).toEqual([0o700, 0o600])
  expect(readdirSync(state)).toEqual(['token-key'])
  expect(log).toEqual([])
})

test('each hypervisor makes another key', () => {
  const first = key()
  rmSync(path())
  expect(key()).not.toBe(first)
})

test('later starts use the same key, and do not write it again', () => {
  const first = key()
  const { ino } = statSync(path())
  expect([key(), key(), statSync(path()).ino]).toEqual([first, first, ino])
})

test.each([
  ['empty', ''],
  ['torn', 'AQEBAQEB'],
  ['not base64', 'x'.repeat(44)],
])('a key file that is %s is replaced, and the log says that guests need new tokens', (_what, text) => {
  mkdirSync(state)
  writeFileSync(path(), text)
  const fresh = key()
  expect(readFileSync(path(), 'utf8')).toBe(`${fresh}\n`)
  expect(log).toMatchObject([
    { level: 40, msg: 'the session token key is malformed; a new one replaces it, and guests must fetch new tokens' },
  ])
})

test('if the key cannot be saved, the daemon runs with a new key at each start', () => {
  writeFileSync(state, 'a file, no directory')
  expect(key()).not.toBe(key())
  expect(log.map(({ level, reason }) => [level, reason?.split(':')[0]])).toEqual([
    [40, 'EEXIST'],
    [40, 'EEXIST'],
  ])
  expect(existsSync(path())).toBe(false)
})

test('a key that cannot be read is neither replaced nor deleted', () => {
  mkdirSync(path(), { recursive: true })
  expect(Buffer.from(key(), 'base64')).toHaveLength(32)
  expect(statSync(path()).isDirectory()).toBe(true)
  expect(log).toMatchObject([{ level: 40, reason: 'it is a directory, not a regular file' }])
})

test('invariant 9: no log line has a key', () => {
  mkdirSync(state)
  writeFileSync(path(), 'S3CRET-but-malformed')
  const fresh = key()
  expect(JSON.stringify(log)).not.toContain('S3CRET')
  expect(JSON.stringify(log)).not.toContain(fresh)
})

test('a FIFO or a link in place of the key file does not hold up the start, and is not followed', () => {
  mkdirSync(state)
  for (const make of [() => execFileSync('mkfifo', [path()]), () => symlinkSync('/dev/zero', path())]) {
    make()
    expect(Buffer.from(key(), 'base64')).toHaveLength(32)
    rmSync(path())
  }
  expect(log.map(({ reason }) => reason)).toEqual([
    'it is a FIFO, not a regular file',
    'it is a symbolic link, not a regular file',
  ])
})
