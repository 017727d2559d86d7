/** How one instance is read from its files. test/imdsd/files.test.ts has what a daemon makes of it. */
import { execFileSync } from 'node:child_process'
import {
  appendFileSync,
  mkdirSync,
  readdirSync,
  readlinkSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { formatRecordWithUserData } from '../../../../src/store/document.ts'
import { idOfFile, listInstances, loadFiles } from '../../../../src/store/files/load.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { temporaryDirectory } from '../../../support/fixtures/temporary-directory.ts'

const ID = 'srv-abcde'
const MIB = 1024 * 1024
const aDirectory = () => temporaryDirectory()

/** True while this process has the file open. */
const isOpen = (path: string) =>
  readdirSync('/proc/self/fd').some((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`) === path
    } catch {
      return false // closed meanwhile
    }
  })

test('a read during a write returns one state, not a record with the user-data of another', async () => {
  const directory = aDirectory()
  const userData = join(directory, `${ID}.user-data`)
  writeFileSync(join(directory, `${ID}.json`), JSON.stringify(anInstance()))
  writeFileSync(userData, Buffer.alloc(64 * MIB)) // so long that this test sees it open
  const loading = loadFiles(directory, ID, 64 * MIB)
  while (!isOpen(userData)) await nextTurn()
  writeFileSync(
    join(directory, `${ID}.json`),
    formatRecordWithUserData(anInstance({ revision: 2 }), Buffer.from('two')),
  )
  rmSync(userData)
  expect(await loading).toMatchObject({
    kind: 'record',
    document: { revision: 2, userData: { size: 3 } },
    userData: Buffer.from('two'),
  })
})

test('a record with its user-data in it replaces every other file of its instance', async () => {
  const directory = aDirectory()
  writeFileSync(join(directory, `${ID}.yaml`), '{')
  writeFileSync(join(directory, `${ID}.user-data`), 'by hand')
  writeFileSync(join(directory, `${ID}.removed`), '7')
  for (const userData of [Buffer.from([0, 255]), undefined]) {
    writeFileSync(join(directory, `${ID}.json`), formatRecordWithUserData(anInstance({ revision: 2 }), userData))
    expect(await loadFiles(directory, ID)).toMatchObject({ kind: 'record', document: { revision: 2 }, userData })
  }
  writeFileSync(join(directory, `${ID}.json`), JSON.stringify(anInstance()))
  expect(await loadFiles(directory, ID)).toMatchObject({
    kind: 'unreadable',
    reason: `more than one record: ${ID}.json, ${ID}.yaml`,
  })
})

test('a record with other fields than its user-data beside it is a fault that does not quote them', async () => {
  const directory = aDirectory()
  for (const wrong of [{ S3CRET: 1 }, { userDataBase64: 'S3CRET!' }]) {
    writeFileSync(join(directory, `${ID}.json`), JSON.stringify({ record: anInstance(), ...wrong }))
    expect(await loadFiles(directory, ID)).toMatchObject({
      kind: 'unreadable',
      reason: `${ID}.json is no record with its user-data: publish it again`,
    })
  }
})

test('a file that cannot be looked up does not count as absent', async () => {
  const directory = aDirectory()
  symlinkSync(`${ID}.json`, join(directory, `${ID}.json`))
  await expect(loadFiles(directory, ID)).rejects.toThrow('ELOOP')
})

test('user-data beyond the limit is a fault, is not read, and changes the digest with its file', async () => {
  const directory = aDirectory()
  const path = join(directory, `${ID}.user-data`)
  writeFileSync(join(directory, `${ID}.json`), JSON.stringify(anInstance()))
  writeFileSync(path, '')
  const digests = new Set<string>()
  for (const bytes of [2 ** 42, 2 ** 42 + 1]) {
    // more than a read could give
    truncateSync(path, bytes)
    const loaded = await loadFiles(directory, ID, 16_384)
    expect(loaded).toMatchObject({
      kind: 'user-data',
      reason: `the user-data is ${bytes} bytes, more than the limit of 16384 (IMDS_USER_DATA_MAX_BYTES)`,
    })
    if ('digest' in loaded) digests.add(loaded.digest!)
  }
  truncateSync(path, 16_384)
  const good = await loadFiles(directory, ID, 16_384)
  expect(good).toMatchObject({ kind: 'record', document: { userData: { size: 16_384 } } })
  if ('digest' in good) digests.add(good.digest!)
  expect(digests.size).toBe(3)
  writeFileSync(join(directory, `${ID}.json`), formatRecordWithUserData(anInstance(), Buffer.alloc(16_385)))
  rmSync(path)
  expect(await loadFiles(directory, ID, 16_384)).toMatchObject({
    kind: 'user-data',
    reason: 'the user-data is 16385 bytes, more than the limit of 16384 (IMDS_USER_DATA_MAX_BYTES)',
  })
})

test.each(['.yaml', '.yml'])(
  'a %s file of more than 64 KiB is a fault before it is parsed; as JSON it is read',
  async (ending) => {
    const directory = aDirectory()
    const path = join(directory, `${ID}${ending}`)
    const record = JSON.stringify(anInstance()) // JSON is YAML
    writeFileSync(path, record.padEnd(65_536))
    expect(await loadFiles(directory, ID)).toMatchObject({ kind: 'record' })
    writeFileSync(path, record.padEnd(65_537))
    expect(await loadFiles(directory, ID)).toMatchObject({
      kind: 'unreadable',
      reason: `${ID}${ending} is 65537 bytes, more than the limit of 65536 for YAML: write it as JSON`,
    })
    renameSync(path, join(directory, `${ID}.json`))
    expect(await loadFiles(directory, ID)).toMatchObject({ kind: 'record' })
  },
)

const ENDINGS = ['.json', '.yaml', '.user-data', '.removed'] as const
const IRREGULAR: Readonly<Record<string, (path: string) => unknown>> = {
  'a FIFO': (path) => execFileSync('mkfifo', [path]),
  'a directory': (path) => mkdirSync(path),
  'a device': (path) => symlinkSync('/dev/zero', path),
  'a socket': (path) =>
    new Promise((resolve) => {
      createServer()
        .listen(path, () => resolve(undefined))
        .unref()
    }),
}

test.each(Object.keys(IRREGULAR))(
  '%s is a fault of its instance, and is not opened, whichever file it is',
  async (what) => {
    for (const ending of ENDINGS) {
      const directory = aDirectory()
      if (ending === '.user-data') writeFileSync(join(directory, `${ID}.json`), JSON.stringify(anInstance()))
      await IRREGULAR[what]!(join(directory, ID + ending))
      expect(await loadFiles(directory, ID)).toMatchObject({
        kind: 'unreadable',
        reason: `${ID}${ending} is ${what}, not a regular file: delete it`,
      })
    }
  },
)

test('a record, user-data or a tombstone may be a link', async () => {
  const [directory, elsewhere] = [aDirectory(), aDirectory()]
  writeFileSync(join(elsewhere, 'record'), JSON.stringify(anInstance()))
  writeFileSync(join(elsewhere, 'removed'), '1')
  symlinkSync(join(elsewhere, 'record'), join(directory, `${ID}.json`))
  symlinkSync(join(elsewhere, 'record'), join(directory, `${ID}.user-data`))
  expect(await loadFiles(directory, ID)).toMatchObject({
    kind: 'record',
    document: { revision: 1 },
    userData: Buffer.from(JSON.stringify(anInstance())),
  })
  symlinkSync(join(elsewhere, 'removed'), join(directory, 'srv-gone.removed'))
  expect(await loadFiles(directory, 'srv-gone')).toEqual({ kind: 'removed', id: 'srv-gone' })
})

test.each([
  ['.json', 4 * 262_144 + 4 * 5462, `${ID}.json is`],
  ['.yaml', 65_536, `${ID}.yaml is`],
  ['.user-data', 16_384, 'the user-data is'],
  ['.removed', 1_024, `${ID}.removed is`],
] as const)(
  'of a %s file beyond its limit nothing is read, even if it is sparse and larger than the memory',
  async (ending, limit, reason) => {
    const directory = aDirectory()
    const path = join(directory, ID + ending)
    if (ending === '.user-data') writeFileSync(join(directory, `${ID}.json`), JSON.stringify(anInstance()))
    writeFileSync(path, '')
    truncateSync(path, limit)
    expect(JSON.stringify(await loadFiles(directory, ID, 16_384))).not.toContain('more than the limit')
    for (const bytes of [limit + 1, 2 ** 42]) {
      truncateSync(path, bytes)
      const text = `${reason} ${bytes} bytes, more than the limit of ${limit}`
      expect(await loadFiles(directory, ID, 16_384)).toMatchObject({
        kind: ending === '.user-data' ? 'user-data' : 'unreadable',
        reason: expect.stringContaining(text) as string,
      })
    }
  },
)

test('a fault has another digest when its file is changed', async () => {
  const directory = aDirectory()
  const path = join(directory, `${ID}.json`)
  const digests = new Set<unknown>()
  writeFileSync(path, ' '.repeat(32 * MIB))
  for (let i = 0; i < 2; i++) {
    const loaded = await loadFiles(directory, ID)
    if ('digest' in loaded) digests.add(loaded.digest)
    appendFileSync(path, ' ')
  }
  expect(digests.size).toBe(2)
})

test('the id of a file is what stands before the ending, if that is an id', () => {
  expect(
    ['srv-a.json', 'srv-a.b.user-data', 'srv-a.removed', '.publisher.json', 'srv-a.txt', 'a b.json', '-.json'].map(
      idOfFile,
    ),
  ).toEqual(['srv-a', 'srv-a.b', 'srv-a', undefined, undefined, undefined, undefined])
})

test('a record that is not UTF-8, or has several documents or a tag, is a fault that names the cause', async () => {
  const directory = aDirectory()
  writeFileSync(join(directory, `${ID}.yaml`), Buffer.from('id: gr\xfc\n', 'latin1'))
  expect(await loadFiles(directory, ID)).toMatchObject({
    kind: 'unreadable',
    reason: `${ID}.yaml cannot be read: it is not UTF-8: the byte at offset 6 is wrong`,
  })
  writeFileSync(join(directory, `${ID}.yaml`), 'id: a\n---\nid: b\n')
  expect(await loadFiles(directory, ID)).toMatchObject({
    kind: 'unreadable',
    reason: `${ID}.yaml cannot be read from line 2 on: it has several YAML documents: each needs a file of its own`,
  })
  writeFileSync(join(directory, `${ID}.yaml`), 'id: a\nvendorData: !S3CRET\n')
  expect(await loadFiles(directory, ID)).toMatchObject({
    kind: 'unreadable',
    reason: `${ID}.yaml cannot be read from line 2 on: it has a YAML tag that nothing resolves`,
  })
})

test('the instances of a directory are listed by id', async () => {
  const directory = aDirectory()
  for (const name of ['srv-b.json', 'srv-a.user-data', 'srv-a.yml', '.publisher.json', 'notes.txt', 'srv c.json'])
    writeFileSync(join(directory, name), '')
  expect(await listInstances(directory)).toEqual(['srv-a', 'srv-b'])
})
