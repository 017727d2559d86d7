import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import { basename, join } from 'node:path'
import { expect, test } from 'vitest'

const ROOT = new URL('../../', import.meta.url).pathname

/** Tests of the repository, not of a source file. */
const OF_THE_REPOSITORY = ['docs.test.ts', 'layers.test.ts', 'mirror.test.ts']

/** Folders whose files do their work in PostgreSQL, so that the tests of test/imds-api cover them together. */
const NEED_POSTGRES = ['imds-api/changes', 'imds-api/database', 'imds-api/publish', 'imds-api/resources']

/**
 * A test -> other source files that it covers: what they do needs a process, a port or a server, or shows only in the
 * files that use them.
 */
const ELSEWHERE: Readonly<Record<string, readonly string[]>> = {
  'imds-api/access': ['imds-api/auth/account-choice'],
  'imds-api/account-changes': ['imds-api/auth/requester', 'imds-api/http/read-share'],
  'imds-api/status-page': ['imds-api/page/region-state'],
  'imds-api/compute': ['imds-api/compute/server'],
  'imds-api/demo': ['start'],
  'imds-api/grants': [
    'imds-api/auth/grants/client-credentials',
    'imds-api/auth/grants/grant',
    'imds-api/auth/grants/password',
    'imds-api/auth/grants/refresh-token',
    'imds-api/auth/token-families',
  ],
  'imds-api/listeners': ['imds-api/http/head', 'imds-api/http/steps', 'imds-api/http/unreadable'],
  'imds-api/docs-pages': ['imds-api/http/public-document'],
  'imds-api/lists': ['imds-api/http/list-stream'],
  'imds-api/mail': ['imds-api/mail/sender', 'imds-api/mail/smtp'],
  'imds-api/program': [
    'imds-api/commands/arguments',
    'imds-api/main',
    'imds-api/service/background',
    'imds-api/service/metrics',
    'imds-api/service/rest',
    'imds-api/service/service',
    'imds-api/service/service-parts',
    'runtime/metrics',
  ],
  'imds-api/region': [
    'imds-api/region/apply',
    'imds-api/region/apply-table',
    'imds-api/region/credentials',
    'imds-api/region/rows',
    'imds-api/region/tables',
  ],
  'imds-api/fleet': ['imds-api/commands/commands'],
  'imds-api/root': ['runtime/other-user'],
  'imds-api/tokens': ['imds-api/auth/bearer', 'imds-api/auth/known-addresses', 'imds-api/auth/token-endpoint'],
  'imds-api/load': ['imds-api/auth/lookups'],
  'contract/seeds': ['metadata/seeds'],
  'contract/session': ['imdsd/guest/authorize'],
  'contract/transport': ['imdsd/guest/exchange', 'imdsd/guest/http-server', 'imdsd/guest/server'],
  'contract/waiting': ['imdsd/guest/queries'],
  'imdsd/addresses': ['imdsd/address-watch'],
  'imdsd/bodies': ['imdsd/guest/linger'],
  'imdsd/doctor': ['imdsctl/doctor/hypervisor', 'imdsd/daemon-state', 'runtime/command'],
  'imdsd/firewall': ['imdsd/guest-finder', 'imdsd/guest-side'],
  'imdsd/firewall-keeping': ['imdsctl/firewall-agent/agent', 'imdsctl/firewall-agent/accepted-mark'],
  'imdsd/firewall-table': ['imdsctl/firewall-agent/nft'],
  'imdsd/life': ['imdsd/main', 'imdsd/operator-side', 'imdsd/store-side', 'library'],
  'imdsd/manual': ['manual/bash', 'manual/manual-files'],
  'imdsd/operator': ['imdsd/operator/listener'],
  'imdsd/operator-client': ['imdsd/operator/client', 'imdsd/operator/wait'],
  'imdsd/programs': [
    'imdsctl/ask-daemon',
    'imdsctl/daemon-commands',
    'imdsctl/imdsctl',
    'imdsctl/main',
    'imdsctl/runner',
    'imdsctl/store-commands',
  ],
  'imdsd/reports': ['imdsd/guest/body'],
  'imdsd/share': ['imdsd/guest/connection-guard'],
  'imdsd/journal': ['imdsd/state-owner'],
  'redis/change-many': ['imdsctl/change'],
  'redis/fleet': ['imdsctl/hypervisors', 'runtime/json', 'store/redis/announcements'],
  'redis/import': ['imdsctl/export'],
  'redis/long-values': ['store/redis/instance-reader', 'store/redis/lengths'],
  'redis/order': ['imdsctl/republish-region'],
  'redis/publish': ['store/redis/publisher', 'store/rules'],
  'redis/shapes-acl': ['store/redis/acl'],
  'redis/shapes-sentinel': ['store/redis/sentinels'],
  'redis/watch': ['store/redis/region-client', 'store/redis/sessions', 'store/redis/source'],
  'unit/imds-api/http/openapi': [
    'imds-api/http/openapi-about',
    'imds-api/http/openapi-parameters',
    'imds-api/http/openapi-responses',
  ],
  'unit/imds-api/http/server': ['imds-api/http/database-errors'],
  'unit/imds-api/http/paging': ['imds-api/http/query'],
  'unit/imds-api/service/config': ['imds-api/auth/settings', 'imds-api/http/settings'],
  'unit/imds-api/region/parse': ['imds-api/region/contradictions', 'imds-api/region/schema'],
  'unit/imdsctl/doctor/status': ['runtime/metric-values'],
  'unit/imdsctl/put': ['imdsctl/report'],
  'unit/imdsd/conditions/table': [
    'conditions/events',
    'imdsd/conditions/events',
    'imdsd/conditions/host',
    'imdsd/conditions/records',
    'imdsd/conditions/store',
  ],
  'unit/imdsd/firewall/firewall': ['imdsd/firewall/documents'],
  'unit/imdsd/operator/server': ['imdsd/operator/paths', 'pages/send'],
  'unit/metadata/schema': ['metadata/schema-interface', 'metadata/schema-texts'],
  'unit/pages/document': ['pages/style'],
  'unit/store/publish': [],
  'unit/store/publish-many': ['store/publisher'],
  'unit/imdsd/journal/journal': ['imdsd/journal/encoding', 'imdsd/journal/journal-writer'],
  'unit/imdsd/journal/restore': ['imdsd/journal/state-files', 'imdsd/journal/unserved-journal'],
  'unit/imdsd/view/sync': ['imdsd/view/sync-state'],
  'unit/imdsd/view/view': ['imdsd/view/served-instance'],
  'unit/imdsd/journal/persistence': [
    'imdsd/journal/disk',
    'imdsd/journal/journal-name',
    'imdsd/journal/rewrite',
    'imdsd/journal/stale-mark',
    'imdsd/journal/rewrite-schedule',
    'limits/in-time',
  ],
}

/** The TypeScript files of a folder, by their path in it. */
const filesOf = (folder: string) =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.ts'))

/** True if nothing is left of a file without its types. */
function hasOnlyTypes(file: string): boolean {
  const code = stripTypeScriptTypes(readFileSync(join(ROOT, 'src', file), 'utf8'))
  return code.replace(/\/\*[^]*?\*\//g, '').trim() === ''
}

const sources = filesOf('src')
const tests = filesOf('test/unit').filter((file) => file.endsWith('.test.ts') && !OF_THE_REPOSITORY.includes(file))
const tested = new Set(tests.map((file) => file.replace(/(-fuzz)?\.test\.ts$/, '.ts')))
const elsewhere = Object.values(ELSEWHERE).flatMap((files) => files.map((file) => `${file}.ts`))
const exists = (name: string) => existsSync(join(ROOT, 'test', `${name}.test.ts`))

/** True if a file has a unit test, or a rule tells which test covers it: the one of its name, or those of its folder. */
const isCovered = (file: string) =>
  tested.has(file) ||
  (file.startsWith('imds-api/') ? ['imds-api'] : ['imdsd', 'redis']).some((folder) =>
    exists(join(folder, basename(file, '.ts'))),
  ) ||
  NEED_POSTGRES.some((folder) => file.startsWith(`${folder}/`))

test('a unit test has the path of its source file; -fuzz is its variant with random input', () => {
  expect([...tested].filter((file) => !sources.includes(file))).toEqual([])
})

test('each source file with code has a unit test, a test of its name, or an entry that names the test', () => {
  expect(sources.filter((file) => !isCovered(file) && !elsewhere.includes(file) && !hasOnlyTypes(file))).toEqual([])
})

test('no entry is superfluous, and the test of each exists', () => {
  expect(elsewhere.filter((file) => isCovered(file) || !sources.includes(file) || hasOnlyTypes(file))).toEqual([])
  expect(Object.keys(ELSEWHERE).filter((name) => !exists(name))).toEqual([])
})
