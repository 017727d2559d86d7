import { execFileSync } from 'node:child_process'
import { chownSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, describe, expect, test } from 'vitest'
import { EXIT } from '../../../src/runtime/exit-status.ts'
import { readRecords } from '../../../src/imdsctl/records.ts'
import { temporaryDirectory } from '../../support/fixtures/temporary-directory.ts'

let directory: string
beforeEach(() => {
  directory = temporaryDirectory()
})

const file = (name: string, content: string | Buffer) => {
  writeFileSync(join(directory, name), content)
  return join(directory, name)
}

/**
 * Reads paths: a record as its place (without the directory), document and user-data, a fault as its place, exit status
 * and message.
 */
async function read(...paths: string[]): Promise<unknown[][]> {
  const found: unknown[][] = []
  for await (const one of readRecords(paths)) {
    const place = one.ok ? one.value.place : String(one.faults[0].details['place'])
    const short = place.replace(`${directory}/`, '')
    if (one.ok)
      found.push([
        short,
        one.value.document,
        one.value.userData instanceof Uint8Array
          ? Buffer.from(one.value.userData).toString()
          : (one.value.userData ?? 'not given'),
      ])
    else found.push([short, one.faults[0].status, one.faults[0].message.replace(`${place} `, '')])
  }
  return found
}

test.each([
  ['a.json', '{"id": "srv-a"}'],
  ['a.json', '{\n  "id": "srv-a"\n}\n'],
  ['a.yaml', 'id: srv-a\n'],
  ['a.txt', '\n\nid: srv-a'],
])('a file holds one record, as JSON or YAML: %s %j', async (name, text) => {
  expect(await read(file(name, text))).toEqual([[name, { id: 'srv-a' }, 'not given']])
})

test('a file whose first line is a whole JSON object has a record on each line that is not blank', async () => {
  expect(await read(file('many', '{"id":"srv-a"}\n\n{"id":"srv-b"}\n'))).toEqual([
    ['many:1', { id: 'srv-a' }, 'not given'],
    ['many:3', { id: 'srv-b' }, 'not given'],
  ])
  expect(await read(file('many', '\n{"id":"srv-a\u2028"}\n{"id":\n{"id":"srv-b"}'))).toEqual([
    ['many:2', { id: 'srv-a\u2028' }, 'not given'],
    ['many:3', EXIT.badData, 'is not JSON'],
    ['many:4', { id: 'srv-b' }, 'not given'],
  ])
})

describe('a line or a file may have its user-data with it', () => {
  test.each<[string, string]>([
    ['"eA=="', 'x'],
    ['""', ''],
    ['null', 'none'],
    ['"gAA="', '\ufffd\0'],
  ])('%s is %j', async (base64, userData) => {
    expect(await read(file('a.json', `{"record": {"id": "srv-a"}, "userDataBase64": ${base64}}`))).toEqual([
      ['a.json', { id: 'srv-a' }, userData],
    ])
  })
  test('or say nothing of it', async () => {
    expect(await read(file('a.json', '{"record": {"id": "srv-a"}}'))).toEqual([
      ['a.json', { id: 'srv-a' }, 'not given'],
    ])
  })
  test.each(['"eA"', '"eA= ="', '"e A=="', '"-_-_"', '7', '{}'])('%s is a fault', async (base64) => {
    expect(await read(file('a.json', `{"record": {}, "userDataBase64": ${base64}}`))).toEqual([
      ['a.json', EXIT.badData, 'has a "userDataBase64" that is neither base64 with padding nor null'],
    ])
  })
  test('and no other field, so that a misspelt one is no record without user-data', async () => {
    expect(await read(file('a.json', '{"record": {}, "userdataBase64": "eA=="}'))).toEqual([
      ['a.json', EXIT.badData, 'has a field other than "record" and "userDataBase64": "userdataBase64"'],
    ])
  })
})

test('a directory is read as the file store reads it: by name, each record with its user-data', async () => {
  file('srv-b.yaml', 'id: srv-b')
  file('srv-a.json', '{"id": "srv-a"}')
  file('srv-a.user-data', 'mine')
  for (const name of ['.hidden.json', 'srv-c.removed', 'srv-d.user-data', 'README']) file(name, '{}')
  mkdirSync(join(directory, 'deeper'))
  expect(await read(directory)).toEqual([
    ['srv-a.json', { id: 'srv-a' }, 'mine'],
    ['srv-b.yaml', { id: 'srv-b' }, 'not given'],
  ])
})

test('two records of one name in a directory are a fault, and the others are read', async () => {
  for (const name of ['srv-a.json', 'srv-a.yml', 'srv-b.json']) file(name, '{}')
  expect(await read(directory)).toEqual([
    ['srv-a.json', EXIT.badData, 'has the same name as another record: srv-a.yml'],
    ['srv-b.json', {}, 'not given'],
  ])
})

test('links and FIFOs of a directory: a link is followed, and a FIFO is a fault, which nobody waits for', async () => {
  file('srv-a.json', '{"id": "srv-a"}')
  symlinkSync(file('elsewhere', 'linked'), join(directory, 'srv-a.user-data'))
  execFileSync('mkfifo', [join(directory, 'srv-b.json')])
  expect(await read(directory)).toEqual([
    ['srv-a.json', { id: 'srv-a' }, 'linked'],
    ['srv-b.json', EXIT.noInput, 'cannot be read: it is a FIFO, not a regular file'],
  ])
})

test.runIf(process.getuid?.() === 0)('root follows no link in a directory of another user', async () => {
  const secret = file('secret', 'S3CRET')
  const others = join(directory, 'others')
  mkdirSync(others)
  writeFileSync(join(others, 'srv-a.json'), '{"id": "srv-a"}')
  symlinkSync(secret, join(others, 'srv-a.user-data'))
  symlinkSync(secret, join(others, 'srv-b.json'))
  chownSync(others, 65_534, 65_534)
  const refused = `cannot be read: it is a symbolic link, and ${others} belongs to the user with the id 65534, who can replace what is there: put a copy of the file there`
  expect(await read(others)).toEqual([
    ['others/srv-a.json', EXIT.noInput, refused],
    ['others/srv-b.json', EXIT.noInput, refused],
  ])
})

test('a path that cannot be read is a fault of its own, and the others are read in their order', async () => {
  const good = file('good.json', '{}')
  expect(await read(join(directory, 'none'), good)).toEqual([
    ['none', EXIT.noInput, expect.stringMatching(/^cannot be read: ENOENT/)],
    ['good.json', {}, 'not given'],
  ])
})

test.each(['{"id": ', 'a: b: c', '{"id": "S3CRET"'])(
  'text that is neither JSON nor YAML is a fault: %j',
  async (text) => {
    expect(await read(file('a', `${text}\n`))).toEqual([
      ['a', EXIT.badData, expect.stringMatching(/^is neither JSON nor YAML: /)],
    ])
  },
)

test('a file that is not UTF-8 is a fault that names the byte, and one of several YAML documents says so', async () => {
  expect(await read(file('a.json', Buffer.from('{"id": "gr\xfc\xdf"}', 'latin1')))).toEqual([
    ['a.json', EXIT.badData, 'cannot be read: it is not UTF-8: the byte at offset 10 is wrong'],
  ])
  expect(await read(file('b.yaml', Buffer.from('id: srv-a\n', 'utf16le')))).toEqual([
    ['b.yaml', EXIT.badData, 'cannot be read: it is not UTF-8, but seems to be UTF-16: convert it to UTF-8'],
  ])
  expect(await read(file('c.yaml', 'id: srv-a\n---\nid: srv-b\n'))).toEqual([
    ['c.yaml', EXIT.badData, 'cannot be read: line 2: it has several YAML documents: each needs a file of its own'],
  ])
  expect(await read(file('d.yaml', 'id: srv-a\nvendorData: !include vendor.yaml\n'))).toEqual([
    ['d.yaml', EXIT.badData, 'cannot be read: line 2: Unresolved tag: !include'],
  ])
})

test('YAML documents that are each one line of JSON get a fault for the line between them', async () => {
  const [, between] = await read(file('several.yaml', '{"id": "a"}\n---\n{"id": "b"}\n'))
  expect(between).toEqual([
    'several.yaml:2',
    EXIT.badData,
    'begins another YAML document: each needs a file of its own',
  ])
})

test('invariant 9: the fault of a line quotes nothing of it: it may hold user-data', async () => {
  const found = await read(file('many', '{"id":"srv-a"}\n{"userDataBase64": "S3CRET\n'))
  expect(found).toHaveLength(2)
  expect(JSON.stringify(found)).not.toContain('S3CRET')
})
