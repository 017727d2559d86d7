/**
 * `imdsctl validate` names every fault of every record, without a store.
 */
import t from 'tap'
import { stringify } from 'yaml'
import { run } from '../support/programs/processes.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { testDirectory } from '../support/test-directory.ts'

t.setTimeout(300_000)

const validate = async (args: readonly string[], input: string | Buffer = '') => {
  const { status, stdout, stderr } = await run([process.execPath, IMDSCTL, ...args], {
    input,
    env: programEnvironment(),
  })
  return { status, stdout: stdout.toString(), stderr }
}

t.test('validate names all faults of all records and exits with 65, or 0 without faults', async (t) => {
  const directory = testDirectory(t, {
    good: {
      'a.json': JSON.stringify(anInstance()),
      'b.yaml': stringify(anInstance({ id: 'srv-b' })),
      'b.user-data': 'x'.repeat(16384),
    },
    bad: {
      'one.json': JSON.stringify(anInstance({ region: 1, revision: 0 })),
      'two.yaml': 'id: [',
      'three.json': JSON.stringify(anInstance({ id: 'srv-c' })),
      'three.user-data': 'x'.repeat(16385),
      'four.json': JSON.stringify(anInstance({ id: 'srv-d', userData: { size: 1, sha256: '0'.repeat(64) } })),
      'four.user-data': 'y',
      'five.json': JSON.stringify(anInstance({ id: 'srv-e', later: 'x'.repeat(262_144) })),
    },
  })
  t.same(await validate(['validate', `${directory}/good`]), {
    status: 0,
    stderr: '',
    stdout: `${directory}/good/a.json: valid, srv-abcde revision 1\n${directory}/good/b.yaml: valid, srv-b revision 1\n2 records: 2 valid\n`,
  })
  const { status, stdout, stderr } = await validate(
    ['validate', `${directory}/bad`, `${directory}/good/a.json`, '-'],
    `${JSON.stringify(anInstance())}\n{}\n`,
  )
  t.equal(status, 65)
  t.match(stdout, /^8 records: .*2 valid/m)
  t.match(stdout, /6 faulty/)
  for (const line of [
    'bad/one.json: srv-abcde: is not a valid record:',
    '  /region must be the name of a region',
    '  /revision must be >= 1',
    'two.yaml is neither JSON nor YAML',
    'bad/three.json: srv-c: is not a valid record:',
    '  /userData is 16385 bytes, more than the limit of 16384',
    'bad/four.json: srv-d: is not a valid record:',
    'bad/five.json: srv-e: is not a valid record:',
    ' bytes as JSON, more than the limit of 262144',
    '  /userData/sha256',
    '-:2: (no id): is not a valid record:',
    '  /id is missing',
  ])
    t.ok(stderr.includes(line), line)
  t.match(
    await validate(['--user-data-max-bytes', '20000', 'validate', `${directory}/bad/three.json`]),
    { status: 0 },
    'a single file has no user-data',
  )
  t.match(await validate(['validate', `${directory}/none`, `${directory}/bad/one.json`]), {
    status: 66,
    stderr: /none cannot be read: ENOENT/,
  })
  t.match(await validate(['validate']), { status: 64 })
  t.match(
    await validate(['validate', '-'], Buffer.from(`{"id":"a"}\n\n{"id":"gr\xfc"}\n`, 'latin1')),
    { status: 65, stderr: /- cannot be read: it is not UTF-8: the byte at offset 21 is wrong$/m },
    'standard input',
  )
  const json = (await validate(['--json', 'validate', `${directory}/bad/one.json`])).stdout
  t.match(JSON.parse(json), {
    result: 'invalid',
    id: 'srv-abcde',
    faults: [{ path: '/revision' }, { path: '/region' }],
  })
})
