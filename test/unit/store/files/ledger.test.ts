import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { LedgerFile, publishedAs, removedAt, type Protection } from '../../../../src/store/files/ledger.ts'
import { FILE_SYSTEM } from '../../../../src/store/files/operations.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const TIME = '2026-11-20T15:04:05Z'
const ROOT = mkdtempSync(join(tmpdir(), 'imds-ledger-'))
afterAll(() => {
  rmSync(ROOT, { recursive: true })
})

const A = { ...publishedAs(parsed(anInstance({ revision: 3 })), undefined), stamp: '.json:1:2:3' }
const B = removedAt(7, TIME)
const BOTH = new Map<string, Protection>([
  ['srv-a', A],
  ['srv-b', B],
])

function aLedger(directory = mkdtempSync(join(ROOT, 'store-'))) {
  return { directory, path: join(directory, '.publisher.json'), ledger: new LedgerFile(directory, FILE_SYSTEM) }
}

test('a ledger is read back as it was written: whole at first, then only the lines that are new', async () => {
  const { directory, ledger } = aLedger()
  expect(await ledger.read()).toEqual({ lines: [], isWhole: true })
  await ledger.rewrite(BOTH)
  expect(await ledger.read()).toEqual({ lines: [], isWhole: false })
  const { ledger: other } = aLedger(directory)
  expect(await other.read()).toEqual({
    lines: [
      ['srv-a', A],
      ['srv-b', B],
    ],
    isWhole: true,
  })
  await ledger.append([['srv-c']], false)
  await ledger.append(
    [
      ['srv-c', B],
      ['srv-a', false],
    ],
    true,
  )
  expect(await ledger.read()).toEqual({ lines: [], isWhole: false })
  expect(await other.read()).toEqual({ lines: [['srv-c'], ['srv-c', B], ['srv-a', false]], isWhole: false })
})

test('a ledger that another process wrote anew is read whole, even if it is longer', async () => {
  const { directory, ledger } = aLedger()
  await ledger.rewrite(new Map())
  const { ledger: other } = aLedger(directory)
  await other.rewrite(BOTH)
  expect(await ledger.read()).toMatchObject({ isWhole: true, lines: { length: 2 } })
})

test.each([
  [
    'without its end',
    (path: string) => {
      truncateSync(path, readFileSync(path).length - 5)
    },
    1,
  ],
  [
    'with zeros at its end',
    (path: string) => {
      appendFileSync(path, '\0'.repeat(100))
    },
    2,
  ],
  [
    'with a line that is no JSON',
    (path: string) => {
      appendFileSync(path, '["srv-c",{"rev\n["srv-d"]\n')
    },
    3,
  ],
  [
    'with a line of an id with a path',
    (path: string) => {
      appendFileSync(path, '["../victim"]\n')
    },
    2,
  ],
  [
    'with a line of another shape',
    (path: string) => {
      appendFileSync(path, '["srv-c",{"revision":"5"}]\n')
    },
    2,
  ],
  [
    'with another header',
    (path: string) => {
      writeFileSync(path, '{"version":3}\n["srv-a"]\n')
    },
    0,
  ],
  [
    'that is empty',
    (path: string) => {
      writeFileSync(path, '')
    },
    0,
  ],
  [
    'that is missing',
    (path: string) => {
      rmSync(path)
    },
    0,
  ],
])('a ledger %s is written anew before the next line; what is whole counts', async (_what, spoil, lines) => {
  const { path, directory, ledger } = aLedger()
  await ledger.rewrite(BOTH)
  spoil(path)
  for (const one of [ledger, aLedger(directory).ledger]) {
    const read = await one.read()
    if (read.isWhole) expect(read.lines).toHaveLength(lines)
    expect(one.isToRewrite(2)).toBe(true)
    await expect(one.append([['srv-a']], true)).rejects.toThrow('has to be written anew')
  }
})

test('a ledger is written anew when it has 1,000 lines more than twice its instances', async () => {
  const { ledger } = aLedger()
  await ledger.rewrite(BOTH)
  await ledger.append(
    Array.from({ length: 1_002 }, () => ['srv-a'] as const),
    false,
  )
  expect(ledger.isToRewrite(2)).toBe(false)
  await ledger.append([['srv-a']], false)
  expect(ledger.isToRewrite(2)).toBe(true)
})

test.each([
  [
    'a symbolic link',
    (path: string) => {
      symlinkSync('/etc/passwd', path)
    },
    'is a symbolic link, not a regular file: delete it',
  ],
  [
    'a directory',
    (path: string) => {
      mkdirSync(path)
    },
    'is a directory, not a regular file: delete it',
  ],
  [
    'longer than 512 MiB',
    (path: string) => {
      writeFileSync(path, '')
      truncateSync(path, 512 * 2 ** 20 + 1)
    },
    'is 536870913 bytes, more than the limit of 536870912: delete it, and it is built from the records',
  ],
])('a ledger that is %s is an error with the remedy', async (_what, make, message) => {
  const { path, ledger } = aLedger()
  make(path)
  await expect(ledger.read()).rejects.toThrow(`${path} ${message}`)
})
