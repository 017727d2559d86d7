/**
 * The JSON Schema of a record: an independent validator (Python's jsonschema, which Debian installs with cloud-init)
 * accepts the same records as `parse`.
 */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { jsonSchema } from '../../src/metadata/json-schema.ts'
import { parse } from '../../src/metadata/record.ts'
import { must } from '../support/programs/processes.ts'
import { aFullInstance, anInstance } from '../support/fixtures/instance.ts'
import { buildInto, IMDSCTL } from '../support/programs/imds.ts'
import { testDirectory } from '../support/test-directory.ts'

const ROOT = new URL('../../', import.meta.url).pathname
const PYTHON = '/usr/bin/python3'
const VALIDATE = `
import json, sys
from jsonschema import Draft202012Validator
data = json.load(sys.stdin)
Draft202012Validator.check_schema(data['schema'])
print(json.dumps([Draft202012Validator(data['schema']).is_valid(record) for record in data['records']]))`
const skip =
  spawnSync(PYTHON, ['-c', 'from jsonschema import Draft202012Validator']).status !== 0 &&
  'python3-jsonschema is missing: Debian installs it with cloud-init'

t.test('the build contains the schema, `imdsctl schema` prints it, and the package ships it', async (t) => {
  const directory = testDirectory(t)
  buildInto(directory)
  const shipped = JSON.parse(readFileSync(join(directory, 'instance.schema.json'), 'utf8')) as unknown
  t.same(shipped, jsonSchema())
  t.same(JSON.parse((await must([process.execPath, IMDSCTL, 'schema'])).toString()), shipped)
  const { files, exports } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
    files: string[]
    exports: Record<string, unknown>
  }
  t.ok(files.includes('dist/'))
  t.equal(exports['./instance.schema.json'], './dist/instance.schema.json')
})

t.test('an independent validator accepts and rejects the same records as `parse`', { skip }, async (t) => {
  const rows: readonly [what: string, record: unknown, isValid: boolean][] = [
    ['a record with only the required fields', anInstance({ serverGroups: undefined, publicKeys: undefined }), true],
    ['a record with every field', aFullInstance(), true],
    ['an unknown field', anInstance({ unknown: 1 }), true],
    ['no id', anInstance({ id: undefined }), false],
    ['an invalid id', anInstance({ id: 'x y' }), false],
    ['another schema', anInstance({ schema: 2 }), false],
    ['revision 0', anInstance({ revision: 0 }), false],
    ['no interface', anInstance({ interfaces: [] }), false],
    ['an interface without a MAC address', anInstance({ interfaces: [{ id: 'int-a' }] }), false],
    ['three hypervisors', anInstance({ hypervisors: ['a', 'b', 'c'] }), false],
    ['an invalid option', anInstance({ options: { httpTokens: 'maybe' } }), false],
    ['an invalid block device', anInstance({ blockDevices: { ami: 'a b' } }), false],
    ['an invalid time', anInstance({ sealedAt: 'yesterday' }), false],
    ['a name with an emoji', anInstance({ serverGroups: [{ id: 'grp-a', name: 'a😀' }] }), true],
    ['a name with a control character', anInstance({ serverGroups: [{ id: 'grp-a', name: 'a\x96' }] }), false],
    ['half of a surrogate pair', anInstance({ tags: { a: '\ud83d' } }), false],
  ]
  const records = rows.map(([, record]) => JSON.parse(JSON.stringify(record)) as unknown)
  t.same(
    records.map((record) => parse(record).ok),
    rows.map(([, , isValid]) => isValid),
    'parse',
  )
  const answer = JSON.parse(
    (await must([PYTHON, '-c', VALIDATE], { input: JSON.stringify({ schema: jsonSchema(), records }) })).toString(),
  ) as boolean[]
  for (const [i, [what, , isValid]] of rows.entries()) t.equal(answer[i], isValid, what)
})
