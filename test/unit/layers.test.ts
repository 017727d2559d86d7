import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { expect, test } from 'vitest'

const SRC = new URL('../../src', import.meta.url).pathname

/** Room -> the rooms that it may import from. Files directly in src/ may import from any. */
const FOUNDATION: Readonly<Record<string, readonly string[]>> = {
  metadata: [],
  runtime: ['metadata'],
  limits: ['metadata'],
  pages: ['limits', 'metadata', 'runtime'],
  conditions: ['pages', 'limits', 'metadata', 'runtime'],
  store: ['limits', 'metadata', 'runtime'],
  identity: ['limits', 'metadata', 'runtime'],
}
const SHARED = Object.keys(FOUNDATION)

const IMDSD: Readonly<Record<string, readonly string[]>> = {
  'imdsd/firewall': ['limits', 'metadata', 'runtime'],
  'imdsd/guest': ['limits', 'metadata', 'runtime'],
  'imdsd/view': ['store', 'limits', 'metadata', 'runtime'],
  'imdsd/journal': ['imdsd/view', 'store', 'limits', 'metadata', 'runtime'],
  'imdsd/operator': [
    'imdsd/view',
    'imdsd/guest',
    'imdsd/firewall',
    'conditions',
    'store',
    'pages',
    'limits',
    'metadata',
    'runtime',
  ],
  'imdsd/conditions': ['imdsd/journal', 'imdsd/view', 'imdsd/firewall', 'conditions', 'metadata', 'runtime'],
}

const IMDSCTL: Readonly<Record<string, readonly string[]>> = {
  'imdsctl/firewall-agent': ['imdsd/operator', 'imdsd/firewall', 'metadata', 'runtime'],
  // doctor also reads the configuration of the daemon on its host.
  'imdsctl/doctor': ['imdsd', 'imdsd/operator', 'imdsd/conditions', 'imdsd/firewall', 'store', 'metadata', 'runtime'],
  imdsctl: [
    'imdsctl/doctor',
    'imdsctl/firewall-agent',
    'imds-api/conditions', // what their codes mean
    'imdsd/conditions',
    'imdsd/guest',
    'imdsd/operator',
    ...SHARED,
  ],
}

/** The rooms of imds-api, the highest first: each may import from those of the rows below, and from the foundation. */
const API_FLOORS: readonly (readonly string[])[] = [
  ['commands'],
  ['service'],
  ['page'],
  ['conditions'],
  ['resources', 'compute', 'region', 'publish', 'mail'],
  ['resources/kit'],
  ['auth'],
  ['changes'],
  ['http', 'database'],
  ['database/migrations'],
  ['model'],
]
/** The rooms of imds-api from a floor downwards, and the foundation. */
const floorsFrom = (first: number) => [
  ...API_FLOORS.slice(first)
    .flat()
    .map((room) => `imds-api/${room}`),
  ...SHARED,
]
const IMPORTS: Readonly<Record<string, readonly string[]>> = {
  ...FOUNDATION,
  ...IMDSD,
  imdsd: [...Object.keys(IMDSD), ...SHARED],
  ...IMDSCTL,
  ...Object.fromEntries(API_FLOORS.flatMap((rooms, i) => rooms.map((room) => [`imds-api/${room}`, floorsFrom(i + 1)]))),
  'imds-api': floorsFrom(0),
  manual: ['imds-api/commands', 'imds-api/service', 'imdsctl', 'imdsd', 'runtime'],
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
  return folder === '.' ? 'top' : folder in IMPORTS ? folder : roomOf(folder)
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
  expect(imports.get('imdsd/daemon.ts')).toContain('imdsd/background.ts') // import() is seen
  expect(imports.get('imdsd/operator/explain.ts')).toContain('imdsd/view/view.ts') // type imports are seen
  expect(forbidden).toEqual([])
})

test('the rooms form no circle', () => {
  const below = (room: string): string[] => (IMPORTS[room] ?? []).flatMap((lower) => [lower, ...below(lower)])
  for (const room of Object.keys(IMPORTS)) expect(below(room)).not.toContain(room)
})

test('the lists of CONTRIBUTING.md name each room, those that it may import first', () => {
  const document = readFileSync(join(SRC, '../CONTRIBUTING.md'), 'utf8')
  const named = [...document.matchAll(/^- (?:the files of )?`([\w/-]+)\/`:/gm)].map(([, room]) => room!)
  const rooms = Object.keys(IMPORTS).filter((room) => !['manual', 'imds-api/database/migrations'].includes(room))
  expect([...named].sort()).toEqual([...rooms].sort())
  const late = rooms.flatMap((room) =>
    IMPORTS[room]!.filter((lower) => named.indexOf(lower) > named.indexOf(room)).map(
      (lower) => `${lower} below ${room}`,
    ),
  )
  expect(late).toEqual([])
})

test('no file imports itself through others', () => {
  const done = new Set<string>()
  const circles = files.map((file) => circleFrom(file, [], done)).filter((circle) => circle !== undefined)
  expect([...new Set(circles.map((circle) => circle.join(' -> ')))]).toEqual([])
})

/** In the store, what the daemon reads with, and what publishers write with. The other files serve both. */
const READ_SIDE = [
  'store/source.ts',
  'store/redis/source.ts',
  'store/redis/sessions.ts',
  'store/files/source.ts',
  'store/files/load.ts',
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
  'store/files/record-index.ts',
  'store/redis/region-client.ts',
  'store/files/operations.ts',
  'store/crypto/encrypting-writer.ts',
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

test('the name of an exported type is unique', () => {
  const names = files.flatMap((file) =>
    [...readFileSync(join(SRC, file), 'utf8').matchAll(/^export (?:type|interface|class) (\w+)/gm)].map(
      ([, name]) => name!,
    ),
  )
  expect(names.length).toBeGreaterThan(500)
  expect(names.filter((name, i) => names.indexOf(name) !== i)).toEqual([])
})

test('only the entries of the programs read the environment', () => {
  const readers = files.filter((file) => readFileSync(join(SRC, file), 'utf8').includes('process.env'))
  expect(readers.sort()).toEqual(['imds-api/main.ts', 'imdsctl/main.ts', 'imdsd/main.ts', 'start.ts'])
})

test('the package of npm installs no other: its bundles hold what they need', () => {
  const manifest = JSON.parse(readFileSync(join(SRC, '../package.json'), 'utf8')) as object
  for (const kind of ['dependencies', 'optionalDependencies']) expect(manifest).not.toHaveProperty(kind) // npm install --save-dev
})
