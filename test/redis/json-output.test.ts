/**
 * What `imdsctl --json` prints has the shape of the examples in docs/json.md: the same fields with values of the same
 * types. test/unit/docs.test.ts checks that each command has an example.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { until } from '../support/programs/daemon.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { startRedis } from '../support/redis/redis.ts'
import { aDaemon, record } from '../support/redis/shapes.ts'
import { executed } from '../tools/documents.ts'
import { openTestStore } from '../support/test-store.ts'
import { shortDirectory } from '../support/test-directory.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'

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

t.test('each command prints JSON in the shape of its example in docs/json.md', async (t) => {
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
  const run = (...args: string[]) => imdsctl([...options, ...args], { env })
  /** Runs a command and compares its lines with those of the example: each with the most similar one, since records are worked on at the same time. */
  const check = async (example: string, ...args: string[]) => {
    const { stdout, stderr } = await run(...args)
    const [documented, printed] = [linesOf(example), linesOf(stdout)]
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

  await check(executed('docs/json.md', 'json init'), 'init')
  const daemon = await aDaemon(t, redis.url)
  env['IMDS_OPERATOR_SOCKET'] = daemon.operatorSocket.replace('unix:', '')
  // a record that comes after the first resync has the time when it was published
  await until(async () => (await daemon.metric('imds_resyncs_total{result="completed"}')) > 0, 'the first resync')
  await check(executed('docs/json.md', 'json put'), 'put', place('records'))
  await check(executed('docs/json.md', 'json validate'), 'validate', place('records'))
  await store.put(record(2), Buffer.from('#cloud-config\n'))
  await check(executed('docs/json.md', 'json user-data'), 'user-data', 'srv-n1')
  await check(executed('docs/json.md', 'json wait'), 'wait', 'srv-n1')
  await check(executed('docs/json.md', 'json seal'), 'seal', 'srv-n1')
  await check(executed('docs/json.md', 'json list'), 'list', '--sealed')
  await check(executed('docs/json.md', 'json list count'), 'list', '--count')
  await check(executed('docs/json.md', 'json unseal'), 'unseal', 'srv-n1')
  const reboot = ['--code', 'system-reboot', '--not-before', '2026-11-20T15:04:05Z', '--event', 'evt-1']
  await check(executed('docs/json.md', 'json maintenance change'), 'maintenance', 'srv-n1', ...reboot)
  await check(executed('docs/json.md', 'json maintenance'), 'maintenance', 'srv-n1')
  await check(executed('docs/json.md', 'json drain'), 'drain', 'hv1')
  await check(executed('docs/json.md', 'json hypervisors'), 'hypervisors')
  await check(executed('docs/json.md', 'json undrain'), 'undrain', 'hv1')
  await check(executed('docs/json.md', 'json evacuate'), 'evacuate', 'hv9', '--to', 'hv1')
  await check(executed('docs/json.md', 'json forget'), 'forget', 'hv9')
  for (const path of ['/latest/meta-data/instance-id', '/latest/meta-data/nothing']) await daemon.get(path)
  await check(executed('docs/json.md', 'json explain'), 'explain', '127.0.0.1')
  await check(executed('docs/json.md', 'json explain code'), 'explain', 'firewall-restored')
  await check(executed('docs/json.md', 'json acl'), 'acl', 'hv1')
  await check(executed('docs/json.md', 'json doctor'), 'doctor')
  await check(executed('docs/json.md', 'json status'), 'status')
  await check(executed('docs/json.md', 'json firewall'), 'firewall')
  await check(executed('docs/json.md', 'json identity'), 'identity', 'init', place('identity'))
  const certificate = place('identity/identity-cert.pem')
  const issuer = ['--issuer', 'https://id.example.com/gb1']
  await check(executed('docs/json.md', 'json identity jwks'), 'identity', 'jwks', place('web'), certificate, ...issuer)
  await check(executed('docs/json.md', 'json export'), 'export', place('backup'))
  await check(executed('docs/json.md', 'json import'), 'import', place('backup'))
  await check(executed('docs/json.md', 'json republish'), 'republish', '--as-is')
  await check(executed('docs/json.md', 'json encrypt'), '--record-keys', place('keys'), 'encrypt', '--from-plain')
  await check(executed('docs/json.md', 'json decrypt'), '--record-keys', place('keys'), 'decrypt')
  await check(executed('docs/json.md', 'json remove'), 'remove', 'srv-n2', 'srv-n3')
  await check(executed('docs/json.md', 'json list removed'), 'list', '--removed')
  await check(executed('docs/json.md', 'json error'), 'user-data', 'srv-none')
})
