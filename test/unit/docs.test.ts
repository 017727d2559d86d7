import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import { describe, expect, test } from 'vitest'
import { parse } from 'yaml'
import { EXIT } from '../../src/runtime/exit-status.ts'
import { API_VARIABLES } from '../../src/imds-api/service/config.ts'
import { RESOURCES } from '../../src/imds-api/resources/kit/table.ts'
import { VARIABLES } from '../../src/imdsd/config.ts'
import { Metrics } from '../../src/imdsd/metrics.ts'
import { REFUSALS, statusOf } from '../../src/imdsd/guest/refusals.ts'
import { ReadinessSchema } from '../../src/imdsd/operator/documents.ts'
import { PATHS } from '../../src/imdsd/operator/paths.ts'
import { parseRecordKeys, RecordCipher } from '../../src/store/crypto/record-cipher.ts'
import { buildProgram } from '../../src/imdsctl/imdsctl.ts'
import { MEANINGS } from '../../src/imdsctl/explain-code.ts'
import { Output } from '../../src/runtime/output.ts'
import { STORE_SETTINGS } from '../../src/store/settings.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import { DOCUMENTS, executed, read, ROOT } from '../tools/documents.ts'
import { alertRules, generated, redisAcl } from '../tools/generate.ts'
import { temporaryDirectory } from '../support/fixtures/temporary-directory.ts'

const DOCS = new Map(DOCUMENTS.map((path) => [path, read(path)]))

/** Files that cite documents: path and text. */
const CITING = [
  ...['src', 'test', 'deploy', 'systemd']
    .flatMap((folder) =>
      readdirSync(`${ROOT}${folder}`, { recursive: true, encoding: 'utf8' }).map((name) => `${folder}/${name}`),
    )
    .filter((path) => /\.(ts|lua|json|ya?ml|env|conf|acl|service|socket|sysusers|md)$/.test(path)),
  'Dockerfile',
  '.ci/run',
  'oxlint.config.ts',
  'rolldown.config.js',
  'package.json',
].map((path) => [path, read(path)] as const)
const all = [...DOCS, ...CITING]

/** What follows `name` in every text, with the place of each. */
function found(
  texts: Iterable<readonly [path: string, text: string]>,
  pattern: RegExp,
): (readonly [path: string, match: string])[] {
  return [...texts].flatMap(([path, text]) => [...text.matchAll(pattern)].map((match) => [path, match[1]!] as const))
}

const prose = (text: string) => text.replace(/^```.*?^```/gms, '')
const unique = <T>(values: Iterable<T>) => [...new Set(values)].sort()

/** The anchors of a document, as GitHub makes them from headings. */
function anchorsOf(document: string): string[] {
  return found([[document, prose(read(document))]], /^#+ (.+)$/gm).map(([, heading]) =>
    heading
      .toLowerCase()
      .replace(/[^\w\- ]/g, '')
      .replaceAll(' ', '-'),
  )
}

/** What is wrong with a reference to a file of the repository, or to an anchor in it; undefined if it resolves. */
function broken(from: string, target: string): string | undefined {
  const [path = '', anchor] = target.split('#')
  const file = path === '' ? from : normalize(join(dirname(from), path))
  if (!existsSync(`${ROOT}${file}`)) return `${from}: ${target}: there is no ${file}`
  return anchor === undefined || anchorsOf(file).includes(anchor)
    ? undefined
    : `${from}: ${target}: ${file} has no such heading`
}

/** The items of the lists below a heading that begin as `pattern` says: its groups. */
function itemsBelow(document: string, heading: string, pattern: RegExp): string[][] {
  const [, below] = DOCS.get(document)!.split(`\n${heading}\n`)
  const end = below!.search(new RegExp(`\\n#{1,${heading.split(' ')[0]!.length}} `))
  const items = below!.slice(0, end === -1 ? undefined : end).matchAll(new RegExp(`^- ${pattern.source}`, 'gm'))
  return [...items].map((match) => match.slice(1))
}

test('the README has at most 130 lines', () => {
  expect(DOCS.get('README.md')!.split('\n').length - 1).toBeLessThanOrEqual(130)
})

/** The fenced blocks of a document. `executed`: the name in the comment before a block that a test runs. */
function blocksOf(document: string): { readonly executed: string | undefined; readonly lines: readonly string[] }[] {
  return [...DOCS.get(document)!.matchAll(/(?:^<!-- executed: ([\w -]+) -->\n\n)?^```\w*\n(.*?)^```$/gms)].map(
    ([, name, code]) => ({
      executed: name,
      lines: code!
        .split('\n')
        .map((line) => line.replace(/(^| +)#.*/, ''))
        .filter((line) => line !== ''),
    }),
  )
}

/** The blocks that no test executes as a whole, by document and first line, with the reason. */
const NOT_EXECUTED: Readonly<Record<string, string>> = {
  'README.md: npm start': '.ci/run runs both commands',
  'CONTRIBUTING.md: npm start': '.ci/run runs the first command; the second changes the shell of its user',
  'CONTRIBUTING.md: npm test':
    'the runners of the tests themselves: the test below checks the names of scripts, a test above those of files',
}

test('every block of code in the documents is executed by a test, or listed with the reason', () => {
  const rest = DOCUMENTS.flatMap((path) =>
    blocksOf(path)
      .filter((block) => block.executed === undefined)
      .map(({ lines: [first] }) => `${path}: ${first!}`),
  )
  expect(unique(rest)).toEqual(Object.keys(NOT_EXECUTED).sort())
  const ci = read('.ci/run')
  for (const command of ['npm start', 'npm test'])
    expect(ci).toMatch(new RegExp(`^(?:[A-Z_]+=\\S+ )*${command}\\b`, 'm'))
})

test('the README configures and starts imds with the commands of docs/install.md', () => {
  const [readme, install] = [executed('README.md', 'install'), executed('docs/install.md', 'deb-install')].map((code) =>
    code.slice(code.indexOf('editor ')),
  )
  expect(readme).toBe(install)
})

test('the scripts that CONTRIBUTING.md names exist', () => {
  const { scripts } = JSON.parse(read('package.json')) as { scripts: Readonly<Record<string, string>> }
  const named = found([['', DOCS.get('CONTRIBUTING.md')!]], /\bnpm (?:run )?(?!run\b)([a-z]+)/g).map(([, name]) => name)
  expect(named.length).toBeGreaterThan(6)
  expect(named.filter((name) => !(name in scripts) && name !== 'ci')).toEqual([])
})

test('every relative link and anchor in the documents resolves', () => {
  const links = found(
    [...DOCS].map(([path, text]) => [path, prose(text)] as const),
    /\]\(([^)]+)\)/g,
  ).filter(([, target]) => !/^https?:/.test(target))
  expect(links.length).toBeGreaterThan(100)
  expect(links.map(([from, target]) => broken(from, target)).filter((fault) => fault !== undefined)).toEqual([])
})

test('every document is reachable from the README by one link', () => {
  const linked = found([['README.md', DOCS.get('README.md')!]], /\]\(([^)#]+)[^)]*\)/g).map(([, target]) => target)
  expect(DOCUMENTS.filter((path) => path !== 'README.md' && !linked.includes(path))).toEqual([])
})

test('every citation of a document in code, tests and units resolves', () => {
  const citations = found(CITING, /\b(docs\/(?:operations\/)?[\w-]+\.(?:md|svg)(?:#[\w-]+)?)/g)
  expect(citations.length).toBeGreaterThan(10)
  expect(
    citations.map(([path, target]) => [path, broken('README.md', target)]).filter(([, fault]) => fault !== undefined),
  ).toEqual([])
  expect(found(CITING, /\b(reference\/\w+\.\w+)/g).filter(([path]) => path !== 'test/unit/docs.test.ts')).toEqual([])
})

test('every source and test file that is named exists', () => {
  const paths = found(all, /\b((?:src|test)\/[\w/-]+\.(?:ts|lua|js))\b/g)
  expect(paths.length).toBeGreaterThan(20)
  const folders = found(DOCS, /`((?:src|test|deploy|systemd|docs)\/[\w./@-]*)`/g)
  expect([...paths, ...folders].filter(([, path]) => !existsSync(`${ROOT}${path}`))).toEqual([])
  const named = found(DOCS, /`((?:imdsd|redis|imds-api|clients|contract|faults|unit)\/[\w/-]*\w)`/g)
  expect(named.length).toBeGreaterThan(3)
  expect(named.filter(([, name]) => !existsSync(`${ROOT}test/${name}.test.ts`))).toEqual([])
})

test('every rule of the contract and every invariant that is cited exists', () => {
  const rules = found([['', DOCS.get('docs/contract.md')!]], /^- \*\*([A-H]\d)\*\*/gm).map(([, rule]) => rule)
  expect(unique(rules)).toHaveLength(rules.length)
  const lists = found(all, /(?:\bcontract(?:'s)? |\(|['"`])([A-H]\d(?:(?:,| and| to) [A-H]\d)*)(?=[).;:,'"` ])/g)
  const cited = lists.flatMap(([path, list]) => list.split(/(?:,| and| to) /).map((rule) => [path, rule] as const))
  expect(cited.length).toBeGreaterThan(100)
  expect(cited.filter(([, rule]) => !rules.includes(rule))).toEqual([])
  const invariants = found([['', DOCS.get('docs/architecture.md')!]], /^(\d+)\. \*\*/gm).map(([, number]) => number)
  expect(found(all, /[Ii]nvariant (\d+)/g).filter(([, number]) => !invariants.includes(number))).toEqual([])
})

test.each(DOCUMENTS.filter((path) => DOCS.get(path)!.includes('<!-- generated: ')))(
  '%s has the tables that `node test/tools/generate.ts` writes',
  async (path) => expect(DOCS.get(path)).toBe(await generated(DOCS.get(path)!)),
)

test('deploy/redis.acl has the users that imdsctl acl prints', () => expect(read('deploy/redis.acl')).toBe(redisAcl()))

test('api.md has every error of imds-api, with its status', () => {
  const statuses = found([['', read('src/imds-api/model/refusal.ts')]], /^ {2}(\w+: \d{3}),$/gm).map(([, text]) => text)
  expect(statuses.length).toBeGreaterThan(10)
  const [, below = ''] = DOCS.get('docs/api.md')!.split('\n## Errors\n')
  const named = [...below.split('\n## ')[0]!.matchAll(/`(\w+)`\s(\d{3})\b/g)].map(
    ([, name, status]) => `${name!}: ${status!}`,
  )
  expect(named.sort()).toEqual(statuses.sort())
})

test('api.md and accounts.md name every path of imds-api', () => {
  const others = CITING.filter(([path]) => path.startsWith('src/imds-api/resources/')).flatMap(([, text]) =>
    found([['', text]], /(?:server\.(?:get|post|put|delete)\(\s*|path: )'\/?([a-z_]+)/g).map(([, path]) => path),
  )
  expect(unique(others)).toEqual(expect.arrayContaining(['account', 'events', 'user']))
  const text = `${DOCS.get('docs/api.md')!}${DOCS.get('docs/accounts.md')!}`
  const paths = [...Object.values(RESOURCES).map(({ path }) => path), ...others]
  expect(paths.filter((path) => !text.includes(`/${path}`))).toEqual([])
})

test('variables, metrics and alerts that the documents name exist', () => {
  const metrics = ['## Metrics', '## Metrics of imds-api'].flatMap((heading) =>
    itemsBelow('docs/operations/metrics.md', heading, /`(\w+)`/).flat(),
  )
  const texts = [
    ...DOCS,
    ['deploy/alerts.yml', read('deploy/alerts.yml')] as const,
    ['deploy/imds.env', read('deploy/imds.env')] as const,
  ].filter(([path]) => path !== 'CHANGELOG.md')
  const ofAnsible = found(
    CITING.filter(([path]) => path.startsWith('deploy/ansible/')),
    /\b(imds_[a-z_]+)/g,
  ).map(([, name]) => name)
  expect(found(texts, /\b(imds_[a-z_]+)/g).filter(([, name]) => ![...metrics, ...ofAnsible].includes(name))).toEqual([])
  expect(
    found(texts, /\b(IMDS_[A-Z_]*[A-Z])\b/g).filter(
      ([, name]) =>
        !(name in VARIABLES) &&
        !(name in API_VARIABLES) &&
        name !== 'IMDS_REDIS' &&
        !['IMDS_TEST_BUILD', 'IMDS_TEST_LONG'].includes(name),
    ),
  ).toEqual([])
  const { groups } = parse(read('deploy/alerts.yml')) as { groups: readonly { rules: readonly { alert: string }[] }[] }
  const alerts = groups.flatMap(({ rules }) => rules).map(({ alert }) => alert)
  expect(found(texts, /\b(Imds[A-Z]\w+)/g).filter(([, name]) => !alerts.includes(name))).toEqual([])
})

test('the rules over conditions are as `node test/tools/generate.ts` writes them; each runbook exists', () => {
  const text = read('deploy/alerts.yml')
  expect(text).toBe(alertRules(text))
  const runbooks = found([['deploy/alerts.yml', text]], /runbook: (\S+)/g)
  expect(runbooks.length).toBeGreaterThan(6)
  expect(runbooks.map(([, target]) => broken('README.md', target)).filter((fault) => fault !== undefined)).toEqual([])
})

test('what alerts and documents search for in the journal are codes or reasons of log lines', () => {
  const texts = [...DOCS, ['deploy/alerts.yml', read('deploy/alerts.yml')] as const]
  const searched = found(texts, /journalctl -u [\w-]+\s+\|\s+grep (?:-E\s+')?([\w|-]+)/g)
  expect(searched.length).toBeGreaterThan(2)
  expect(searched.filter(([, text]) => !text.split('|').every((code) => MEANINGS.has(code)))).toEqual([])
})

/** The files that declare imdsctl's commands and options. */
const IMDSCTL = ['imdsctl', 'store-commands', 'daemon-commands']
  .map((name) => read(`src/imdsctl/${name}.ts`))
  .join('\n')
const ignore = () => undefined
const IMDSCTL_COMMANDS = buildProgram({
  output: new Output('', process.stdout, process.stderr, ignore),
  env: {},
  own: {},
  onStatus: ignore,
}).commands.map((command) => command.name())

test('every command and option of imdsctl and imdsd that documents, alerts and units name exists', () => {
  const texts = [...DOCS, ...CITING.filter(([path]) => /^(deploy|systemd)\//.test(path))]
  expect(
    found(texts, /(?:^|`)imdsctl ([a-z][\w-]*)/gm).filter(([, command]) => !IMDSCTL_COMMANDS.includes(command)),
  ).toEqual([])
  const declared = [
    IMDSCTL,
    read('src/imdsd/arguments.ts'),
    read('src/metadata/event-options.ts'),
    ...Object.values(STORE_SETTINGS).map(({ flags }) => flags),
  ].join()
  const options = found(found(texts, /(?:^|`)(?:imdsctl|imdsd)( [^`\n#]*)/gm), / (--[a-z][\w-]*)/g)
  expect(options.length).toBeGreaterThan(20)
  expect(options.filter(([, option]) => !declared.includes(option))).toEqual([])
})

describe('tables that people write have every row of the code', () => {
  test('the refusals, with their statuses', () => {
    const items = itemsBelow('docs/guests.md', '## Statuses', /`([\w-]+)` (\d{3}):/).map((item) => item.join(' '))
    expect(items.sort()).toEqual(REFUSALS.map((refusal) => `${refusal} ${statusOf(refusal)}`).sort())
  })
  test('the exit statuses in imdsctl --help', () => {
    const [, below = ''] = read('src/imdsctl/imdsctl.ts').split('\nExit statuses:\n')
    const statuses = found([['', below]], /^ {2}(\d+) /gm).map(([, status]) => Number(status))
    expect(statuses).toEqual(Object.values(EXIT).filter((status) => status !== EXIT.badConfig)) // that is a daemon's
  })
  test('the commands of imdsctl', () => {
    const described = found(
      [['', DOCS.get('docs/publishing.md')!.split('### Options')[0]!]],
      /^imdsctl ([\w-]+)/gm,
    ).map(([, command]) => command)
    expect(unique(described)).toEqual(unique(IMDSCTL_COMMANDS))
  })
  test('the paths of the operator API', () => {
    const paths = itemsBelow('docs/operations/tools.md', "## The operators' listeners", /`(\/[^?`]*)/).map(([path]) =>
      path!.replace('ID', ':id'),
    )
    expect(unique(paths)).toEqual(unique(Object.values(PATHS)))
  })
  test('the fields of /readyz', () => {
    const { conditions, firewall, ...others } = ReadinessSchema.properties
    const parts = [others, conditions.items.properties, firewall.properties]
    const [, below = ''] = DOCS.get('docs/operations/metrics.md')!.split('\n## Readiness\n')
    const text = below.split('\n## ')[0]!
    expect(parts.flatMap((part) => Object.keys(part)).filter((name) => !text.includes(`\`${name}\``))).toEqual([])
  })
  test('the units of systemd, and the drop-ins for secrets', () => {
    const files = (folder: string, pattern: RegExp) =>
      readdirSync(`${ROOT}${folder}`)
        .filter((name) => pattern.test(name))
        .sort()
    const units = itemsBelow('docs/install.md', '## The units', /`(\S+)`:/).map(([name]) =>
      name!.replace(/NETWORK|ADDRESS/, ''),
    )
    expect(units.sort()).toEqual(files('systemd', /\.(service|socket)$/))
    const [, secrets = ''] = DOCS.get('docs/install.md')!.split('\n## Secrets\n')
    const named = found([['', secrets.split('\n## ')[0]!]], /`([\w-]+\.conf)`/g).map(([, name]) => name)
    expect(named.sort()).toEqual(files('deploy', /\.conf$/))
  })
  test('the keys in Redis', () => {
    const keys = Object.values(keysOf('REGION')).map((key: string | ((name: string, id: string) => string)) =>
      typeof key === 'string' ? key : key('*', '*').replace('*:*', '*'),
    )
    const items = itemsBelow('docs/redis-layout.md', '## Keys', /`(\S+)`, a/).map(([key]) =>
      key!.replace(/(:(ID|NAME|NETWORK))+$/, ':*'),
    )
    expect(unique(items)).toEqual(unique(keys))
  })
})

test('the command of docs/encryption.md makes a file of record keys that only its owner can read', () => {
  const directory = temporaryDirectory()
  const file = join(directory, 'record-keys')
  expect(
    spawnSync('sh', ['-euc', executed('docs/encryption.md', 'record key').replace('/etc/imds/record-keys', file)])
      .status,
  ).toBe(0)
  expect(parseRecordKeys(readFileSync(file, 'utf8'))).toMatchObject({ ok: true })
  expect(statSync(file).mode & 0o777).toBe(0o600)
})

test('docs/encryption.md gives the largest difference in length between a value and its content', () => {
  const keys = parseRecordKeys(`${'k'.repeat(63)}:${Buffer.alloc(32).toString('base64')}`)
  if (!keys.ok) throw new Error(keys.faults.join())
  const longest = new RecordCipher(keys.value, 'gb1').encrypt(
    'record',
    'srv-abcde',
    Number.MAX_SAFE_INTEGER,
    Buffer.alloc(0),
  ).length
  expect(DOCS.get('docs/encryption.md')).toContain(`\nA value is at most ${longest} bytes longer than its content.`)
})

test('every example that is marked as executed is run by a test', () => {
  const tests = CITING.filter(([path]) => path.endsWith('.test.ts'))
  for (const [document, name] of found(DOCS, /^<!-- executed: ([\w -]+) -->$/gm)) {
    expect([document, name, tests.some(([, text]) => text.includes(`executed('${document}', '${name}')`))]).toEqual([
      document,
      name,
      true,
    ])
  }
})

test('a label that a document or an alert asks for exists, for metrics whose labels are declared', async () => {
  const declared = await new Metrics().registry.metrics()
  const alerts = ['deploy/alerts.yml', 'deploy/alerts.test.yml'].map((path) => [path, read(path)] as const)
  const cited = found(
    [...DOCS, ...alerts],
    /(imds_(?:record_faults|peer_lookups|resyncs|snapshot_writes)_total\{(?:reason|result)="[^"]+"\})/g,
  )
  expect(cited.length).toBeGreaterThan(0)
  expect(cited.filter(([, series]) => !declared.includes(series))).toEqual([])
})

test('every documented command that writes a secret into a file gives it mode 0600', () => {
  const shipped = CITING.filter(([path]) => path.startsWith('deploy/') || path.startsWith('systemd/'))
  const writes = found([...DOCS, ...shipped], /^(.*> ?[\w./-]*(?:secret|password|totp|-keys?)\b.*)$/gm)
  expect(writes.length).toBeGreaterThanOrEqual(6)
  expect(writes.filter(([, line]) => !line.includes('umask 077'))).toEqual([])
  const typed = found(shipped, /(install [^`]*\/dev\/stdin)/g)
  expect(unique(typed.map(([, command]) => command))).toEqual(['install -m 600 /dev/stdin'])
})

test('the templates and the documents give a hypervisor the same name', () => {
  const [environment, acl, region] = ['deploy/imds.env', 'deploy/redis.acl', 'deploy/region.example.yaml'].map(
    read,
  ) as [string, string, string]
  const { hypervisors, name } = parse(region) as { hypervisors: { name: string }[]; name: string }
  const own = /^IMDS_HYPERVISOR=(.+)$/m.exec(environment)?.[1]
  expect(hypervisors[0]?.name).toBe(own)
  expect(environment).toContain(`IMDS_REGION=${name}\n`)
  expect(environment).toContain(`://imds-${String(own)}@`)
  expect(acl).toContain(`user imds-${String(own)} on `)
  expect(acl).toContain(`&${keysOf(name).notices(String(own))} `)
  expect(acl).toContain(`%W~${keysOf(name).announcement(String(own))} `)
  for (const text of [...DOCS.values(), environment, acl, region]) expect(text).not.toMatch(/\bhv-\d/)
})
