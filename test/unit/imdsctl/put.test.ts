/**
 * `put` and `validate` on temporary directories. test/redis/put-many.test.ts and test/imdsd/files.test.ts run them
 * as a program.
 */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Writable } from 'node:stream'
import { beforeEach, describe, expect, test } from 'vitest'
import { put, validate } from '../../../src/imdsctl/put.ts'
import { type CommandFailure, EXIT } from '../../../src/runtime/exit-status.ts'
import { Output } from '../../../src/runtime/output.ts'
import { openStore } from '../../../src/store/open.ts'
import { anInstance } from '../../support/fixtures/instance.ts'
import { temporaryDirectory } from '../../support/fixtures/temporary-directory.ts'

let directory: string
let printed: string[]
let status: number | undefined

beforeEach(() => {
  directory = temporaryDirectory()
  mkdirSync(join(directory, 'store'))
  printed = []
  status = undefined
})

const file = (name: string, content: string | object) => {
  writeFileSync(join(directory, name), typeof content === 'string' ? content : JSON.stringify(content))
  return join(directory, name)
}
const url = () => `file:${join(directory, 'store')}`
const stored = async (id = 'srv-abcde') => (await openStore({ url: url() })).get(id)
/** An output whose lines `printed` collects, those of standard error with "! ". */
const outputOf = (json = false) => {
  const [out, err] = ['', '! '].map(
    (mark) =>
      new Writable({
        write: (chunk, _encoding, done) => {
          printed.push(`${mark}${String(chunk).replace(/\n$/, '')}`)
          done()
        },
      }),
  )
  const output = new Output('imdsctl', out!, err!, () => {
    throw new Error('output was lost')
  })
  output.use({ json, continues: true })
  return output
}
const putting = async (paths: string[], userData?: string | false, { json = false, dryRun = false } = {}) => {
  status = await put({ store: { url: url() }, output: outputOf(json) }, paths, { userData, dryRun })
}
const validating = async (paths: string[], userDataMaxBytes?: number) => {
  status = await validate(outputOf(), paths, userDataMaxBytes)
}
const other = (change: Record<string, unknown> = {}) =>
  anInstance({
    id: 'srv-other',
    interfaces: [{ id: 'int-b', macAddress: '02:24:19:00:00:ef', ipv4Addresses: ['10.0.0.6/30'] }],
    ...change,
  })

test('a record is published with the user-data of its file, and one line says so', async () => {
  await putting([file('a.json', anInstance())], file('user-data', 'mine'))
  expect([printed, status, Buffer.from((await stored())!.userData!).toString()]).toEqual([
    ['published srv-abcde revision 1'],
    EXIT.done,
    'mine',
  ])
})

test('a put keeps the user-data by default, and removes it if that is requested', async () => {
  await putting([file('a.json', anInstance())], file('user-data', 'mine'))
  await putting([file('a.json', anInstance({ revision: 2 }))])
  expect(Buffer.from((await stored())!.userData!).toString()).toBe('mine')
  await putting([file('a.json', anInstance({ revision: 3 }))], false)
  expect((await stored())!.userData?.length ?? 'none').toBe('none')
})

test('a dry run reports what would be done, and writes nothing', async () => {
  await putting([file('a.json', anInstance())], undefined, { dryRun: true })
  expect([printed, (await stored()) === undefined]).toEqual([['would be published srv-abcde revision 1'], true])
})

test('each record that is refused is reported, the others are published; the highest exit status counts', async () => {
  await putting([file('old.json', anInstance({ revision: 5 }))])
  printed = []
  await putting([
    file('a.json', anInstance({ revision: 4 })),
    file('b.json', other()),
    join(directory, 'none'),
    file('c.json', anInstance({ fqdn: '' })),
  ])
  expect(printed).toEqual([
    expect.stringMatching(/^! imdsctl: .*none cannot be read: ENOENT/), // while the first ones are in flight
    expect.stringMatching(
      /^! imdsctl: .*a\.json: srv-abcde: the store holds revision 5 or removed the instance at it: publish a higher one$/,
    ),
    'published srv-other revision 1',
    expect.stringMatching(/^! imdsctl: .*c\.json: srv-abcde: is not a valid record:\n {2}\/fqdn /),
    '4 records, 1 unreadable, 1 refused, 1 published, 1 faulty',
  ])
  expect(status).toBe(EXIT.noInput)
})

test('as JSON each outcome is one object on a line, refusals included', async () => {
  await putting(
    [file('a.json', anInstance()), file('b.json', other({ interfaces: anInstance()['interfaces'] }))],
    undefined,
    { json: true },
  )
  expect(printed.map((line) => JSON.parse(line) as unknown)).toMatchObject([
    { result: 'published', id: 'srv-abcde', revision: 1 },
    { result: 'address-owned', id: 'srv-other', address: '10.0.0.2', owner: 'srv-abcde' },
    { records: 2, published: 1, refused: 1 },
  ])
})

describe('wrong usage publishes nothing', () => {
  test.each<[string, (a: string) => Promise<void>, number, RegExp]>([
    [
      'with one user-data for two records',
      (a) => putting([a, file('b.json', other())], file('user-data', 'x')),
      EXIT.usage,
      /^--user-data is for one record/,
    ],
    [
      'with a second user-data for a record that has its own',
      () =>
        putting(
          [file('line', `{"record": ${JSON.stringify(anInstance())}, "userDataBase64": "eA=="}`)],
          file('user-data', 'x'),
        ),
      EXIT.usage,
      /has its own user-data: omit --user-data$/,
    ],
    ['with both from standard input', () => putting(['-'], '-'), EXIT.usage, /cannot both come from standard input$/],
    ['with no user-data', (a) => putting([a], join(directory, 'none')), EXIT.noInput, /none cannot be read: ENOENT/],
    [
      'with a directory that holds no record',
      () => putting([join(directory, 'store')]),
      EXIT.noInput,
      /^no record found: in a directory, the files of records end in \.json, \.yaml, \.yml$/,
    ],
  ])('%s', async (_what, command, status, message) => {
    const failure = await command(file('a.json', anInstance())).then(
      () => undefined,
      (error: unknown) => error as CommandFailure,
    )
    expect([failure?.status, failure?.message]).toEqual([status, expect.stringMatching(message)])
    expect([(await stored()) === undefined, (await stored('srv-other')) === undefined]).toEqual([true, true])
  })
})

test('a validation needs no store, and checks user-data where it comes with the record', async () => {
  file('srv-abcde.json', anInstance())
  file('srv-abcde.user-data', 'x'.repeat(11))
  await validating([join(directory, 'srv-abcde.json')], 10)
  expect([printed.splice(0), status]).toEqual([
    [expect.stringMatching(/srv-abcde\.json: valid, srv-abcde revision 1$/)],
    EXIT.done,
  ])
  await validating([directory], 10)
  expect([printed, status]).toEqual([
    [expect.stringContaining('/userData is 11 bytes, more than the limit of 10')],
    EXIT.badData,
  ])
})

test('a validation names each fault of each record and counts them; the highest exit status counts', async () => {
  const good = file('good.json', anInstance())
  const bad = file('bad.json', anInstance({ region: 1, revision: 0 }))
  await validating([good, bad])
  expect([printed.splice(0), status]).toEqual([
    [
      expect.stringMatching(/good\.json: valid, srv-abcde revision 1$/),
      expect.stringMatching(
        /bad\.json: srv-abcde: is not a valid record:\n {2}\/revision must be >= 1\n {2}\/region must be the name of a region/,
      ),
      '2 records, 1 valid, 1 faulty',
    ],
    EXIT.badData,
  ])
  await validating([join(directory, 'none'), bad])
  expect(status).toBe(EXIT.noInput)
  printed.length = 0
  await validate(outputOf(true), [bad])
  expect(JSON.parse(printed[0]!)).toMatchObject({
    result: 'invalid',
    id: 'srv-abcde',
    faults: [{ path: '/revision' }, { path: '/region' }],
  })
})

test('a misspelt field is accepted, with a warning, by put and validate', async () => {
  const warning = '/publickeys is no field of a record, and is ignored'
  const path = file('a.json', anInstance({ publickeys: [] }))
  await validating([path])
  await putting([path])
  expect([printed, status]).toEqual([
    [
      `${path}: valid, srv-abcde revision 1`,
      `! imdsctl: warning: ${warning}`,
      'published srv-abcde revision 1',
      `! imdsctl: warning: ${warning}`,
    ],
    EXIT.done,
  ])
  printed = []
  await validate(outputOf(true), [path])
  expect(printed.map((line) => JSON.parse(line) as unknown)).toMatchObject([{ result: 'valid', warnings: [warning] }])
})
