/**
 * What `imdsctl --json` prints has the shape of the examples in docs/json.md, or of those here: the same fields with
 * values of the same types.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { until } from '../support/programs/daemon.ts'
import { KEY_KINDS, makeIdentity } from '../support/fixtures/identity.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { startRedis } from '../support/redis/redis.ts'
import { aDaemon, record } from '../support/redis/shapes.ts'
import { executed } from '../tools/documents.ts'
import { openTestStore } from '../support/test-store.ts'
import { shortDirectory } from '../support/test-directory.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'
import { buildProgram } from '../../src/imdsctl/imdsctl.ts'
import { Output } from '../../src/runtime/output.ts'

/** How two values differ in shape. An empty list has the shape of any other, and of several elements the fields count. */
function differences(example: unknown, actual: unknown, path: string): string[] {
  if (Array.isArray(example) && Array.isArray(actual))
    return example.length === 0 || actual.length === 0 ? [] : differences(merged(example), merged(actual), `${path}[]`)
  if (!isObject(example) || !isObject(actual))
    return kindOf(example) === kindOf(actual) ? [] : [`${path}: ${kindOf(actual)} in place of ${kindOf(example)}`]
  return [...new Set([...Object.keys(example), ...Object.keys(actual)])].flatMap((name) =>
    name in example && name in actual
      ? differences(example[name], actual[name], `${path}.${name}`)
      : [`${path}.${name} is only in the ${name in example ? 'document' : 'output'}`],
  )
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
const kindOf = (value: unknown) => (value === null ? 'null' : Array.isArray(value) ? 'list' : typeof value)
const merged = (values: readonly unknown[]) =>
  (values.every(isObject) ? Object.assign({}, ...values) : values[0]) as unknown
const linesOf = (text: string) =>
  text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as unknown)

const COMMANDS = buildProgram({
  output: new Output('', process.stdout, process.stderr, () => undefined),
  env: {},
  own: {},
  onStatus: () => undefined,
}).commands.map((command) => command.name())

const FAULTY = { place: '', id: '', error: '', result: 'invalid', faults: [{ path: '', message: '' }] }
const EXPLANATION = {
  network: 'default',
  address: '10.0.0.2',
  answer: 'metadata',
  status: 200,
  because: "it is srv-x1y2z's",
  instance: { id: 'srv-x1y2z', revision: 4, hypervisors: ['hv1'] },
  sessionTokens: 'optional',
  userData: '14 bytes',
  hopLimit: { limit: 1, enforced: true },
  requests: [{ topic: 'user-data', at: '2026-11-20T15:04:05.123Z', status: 200, reason: 'served', count: 1 }],
  path: [
    { step: 'link', severity: 'ok', text: 'tap-int-x1y2z is up' },
    {
      step: 'route',
      severity: 'failure',
      text: 'there is no route to 10.0.0.2',
      remedy: 'correct the route: ip route get 10.0.0.2 shows it',
    },
  ],
}
const STATUS = {
  ok: 12,
  warnings: 1,
  failures: 0,
  daemon: {
    ready: true,
    conditions: [],
    version: '',
    store: '',
    connected: true,
    instances: 250,
    viewAgeSeconds: 21.441,
    absent: 0,
    faulty: 0,
    contestedAddresses: 0,
    unconfirmedAddresses: 0,
    firewall: { required: true, applied: true, ageSeconds: 1.2 },
  },
  checks: [{ code: '', severity: '', text: '', remedy: '' }],
}

t.test('each command prints JSON in the shape of its example', async (t) => {
  const redis = await startRedis(t)
  const directory = shortDirectory(t)
  const place = (name: string) => join(directory, name)
  const env: Record<string, string> = {}
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  const other = (change: object = {}) =>
    record(1, {
      id: 'srv-n2',
      interfaces: [{ id: 'int-b', macAddress: '02:24:19:00:00:ef', ipv4Addresses: ['10.0.0.2/24'] }],
      ...change,
    })
  writeFileSync(
    place('records'),
    [record(1), other({ hypervisors: ['hv9'] }), {}].map((one) => JSON.stringify(one)).join('\n'),
  )
  writeFileSync(place('keys'), keyLines('k1'))
  const options = ['--json', '--store', redis.url, '--region', 'gb1']
  const checked = new Set(['get', 'schema', 'reports']) // these two always print JSON; imdsd/reports.test.ts has the third
  const run = (...args: string[]) => imdsctl([...options, ...args], { env })
  /** Runs a command and compares its lines with those of the example: each with the most similar one, since records are worked on at the same time. */
  const check = async (example: string | readonly object[], ...args: string[]) => {
    const { stdout, stderr } = await run(...args)
    const documented =
      typeof example === 'string' ? linesOf(example) : example.map((line) => ({ formatVersion: 1, ...line }))
    const printed = linesOf(stdout)
    checked.add(args.find((arg) => COMMANDS.includes(arg))!)
    t.equal(printed.length, documented.length, args.join(' '))
    t.equal(stderr, '')
    const rest = [...printed]
    for (const line of documented) {
      const [best] = rest
        .map((one) => ({ one, found: differences(line, one, args[0]!) }))
        .sort((a, b) => a.found.length - b.found.length)
      t.same(best?.found, [])
      rest.splice(rest.indexOf(best?.one), 1)
    }
    for (const line of [...documented, ...printed]) t.match(line, { formatVersion: 1 })
  }

  await check([{ result: 'initialised' }], 'init')
  const daemon = await aDaemon(t, redis.url)
  env['IMDS_OPERATOR_SOCKET'] = daemon.operatorSocket.replace('unix:', '')
  // a record that comes after the first resync has the time when it was published
  await until(async () => (await daemon.metric('imds_resyncs_total{result="completed"}')) > 0, 'the first resync')
  await check(executed('docs/json.md', 'json put'), 'put', place('records'))
  await check(
    [
      ...['srv-x1y2z', 'srv-a1b2c'].map((id) => ({ place: '', result: 'valid', id, revision: 1 })),
      FAULTY,
      { records: 3, valid: 2, faulty: 1 },
    ],
    'validate',
    place('records'),
  )
  await store.put(record(2), Buffer.from('#cloud-config\n'))
  await check([{ id: '', userDataBase64: '' }], 'user-data', 'srv-n1')
  await check([{ id: '', revision: 4 }], 'wait', 'srv-n1')
  await check([{ id: '', result: 'sealed', revision: 4, order: 1, sealedAt: '' }], 'seal', 'srv-n1')
  await check(executed('docs/json.md', 'json list'), 'list', '--sealed')
  await check([{ instances: 250, of: 10000, sealed: 3 }], 'list', '--count')
  await check([{ id: '', result: 'unsealed', revision: 5, order: 1, sealedAt: null }], 'unseal', 'srv-n1')
  const reboot = ['--code', 'system-reboot', '--not-before', '2026-11-20T15:04:05Z', '--event', 'evt-1']
  await check([{ id: '', result: 'published', revision: 6, event: 'evt-1' }], 'maintenance', 'srv-n1', ...reboot)
  await check(
    [{ id: '', events: [{ id: '', code: '', state: 'active', notBefore: '', description: '' }] }],
    'maintenance',
    'srv-n1',
  )
  await check([{ name: 'hv1', result: 'drained' }], 'drain', 'hv1')
  await check(executed('docs/json.md', 'json hypervisors'), 'hypervisors')
  await check([{ name: 'hv1', result: 'undrained' }], 'undrain', 'hv1')
  await check([{ result: 'moved', id: '', revision: 2, from: ['hv9'], to: ['hv1'] }], 'evacuate', 'hv9', '--to', 'hv1')
  await check([{ name: 'hv9', result: 'forgotten' }], 'forget', 'hv9')
  for (const path of ['/latest/meta-data/instance-id', '/latest/meta-data/nothing']) await daemon.get(path)
  await check([EXPLANATION], 'explain', '127.0.0.1')
  await check([{ code: '', what: '', guests: '', remedy: '' }], 'explain', 'firewall-restored')
  await check([{ hypervisor: 'hv1', user: '' }], 'acl', 'hv1')
  await check(executed('docs/json.md', 'json doctor'), 'doctor')
  await check([STATUS], 'status')
  await check([{ version: '', interfaces: 250, faults: [], rules: '' }], 'firewall')
  const { certificateFile } = makeIdentity(KEY_KINDS.rsa, place('.'))
  const issuer = ['--issuer', 'https://id.example.com/gb1']
  await check([{ issuer: '', keys: [''], files: [''] }], 'jwks', place('web'), certificateFile, ...issuer)
  await check([{ records: 250, tombstones: 3, unreadable: 0 }], 'export', place('backup'))
  await check([{ records: 250, unchanged: 250 }], 'import', place('backup'))
  await check([{ records: 250, unchanged: 250 }], 'republish', '--as-is')
  await check([{ instances: 250, encrypted: 250 }], '--record-keys', place('keys'), 'encrypt', '--from-plain')
  await check([{ instances: 250, decrypted: 250 }], '--record-keys', place('keys'), 'decrypt')
  await check(executed('docs/json.md', 'json remove'), 'remove', 'srv-n2', 'srv-n3')
  await check([{ id: '', revision: 5 }], 'list', '--removed')
  await check(executed('docs/json.md', 'json error'), 'user-data', 'srv-none')
  t.same([...checked].toSorted(), COMMANDS.toSorted())
})
