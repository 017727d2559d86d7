import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import { basename, join } from 'node:path'
import { expect, test } from 'vitest'

const ROOT = new URL('../../', import.meta.url).pathname

/** Tests of the repository, not of a source file. */
const OF_THE_REPOSITORY = ['docs.test.ts', 'layers.test.ts', 'mirror.test.ts']

/** Folders whose files do their work in PostgreSQL, so that the tests of test/imds-api cover them together. */
const NEED_POSTGRES = ['api/changes', 'api/database', 'api/publish', 'api/resources']

/**
 * A test -> other source files that it covers: what they do needs a process, a port or a server, or shows only in the
 * files that use them.
 */
const ELSEWHERE: Readonly<Record<string, readonly string[]>> = {
  'api/account-changes': ['api/auth/requester', 'api/http/read-share'],
  'api/restored': ['api/recovery'],
  'api/status-page': ['api/page/region-state'],
  'api/cloud-ips': ['api/model/cloud-ip-states'],
  'api/compute': ['api/compute/server'],
  'api/database-servers': ['api/model/database-server-states'],
  'api/demo': ['start'],
  'api/grants': ['api/auth/token-families'],
  'api/listeners': ['api/http/unreadable'],
  'api/lists': ['api/http/list-stream'],
  'api/mail': ['api/mail/sender', 'api/mail/smtp'],
  'api/program': ['api/arguments', 'api/failure', 'api/main', 'api/metrics', 'api/rest', 'api/service'],
  'api/region': [
    'api/model/server-type-states',
    'api/region/apply',
    'api/region/apply-table',
    'api/region/credentials',
    'api/region/rows',
    'api/region/tables',
  ],
  'api/root': ['runtime/become-owner'],
  'api/tokens': ['api/auth/bearer', 'api/auth/known-addresses', 'api/auth/token-endpoint'],
  'contract/seeds': ['metadata/seeds'],
  'contract/transport': ['guest/exchange', 'guest/server'],
  'daemon/bodies': ['guest/linger'],
  'daemon/bugreport': ['doctor/secrets'],
  'daemon/doctor': ['doctor/host'],
  'daemon/environment': ['runtime/as-user'],
  'daemon/firewall': ['daemon/guest-side'],
  'daemon/firewall-keeping': ['firewall/agent/agent', 'firewall/agent/refused'],
  'daemon/firewall-table': ['firewall/agent/nft'],
  'daemon/life': [
    'daemon/daemon',
    'daemon/followers',
    'daemon/main',
    'daemon/operator-side',
    'daemon/store-side',
    'library',
  ],
  'daemon/log-level': ['runtime/signals'],
  'daemon/manual': ['manual/bash', 'manual/manual-files', 'manual/fish', 'manual/man-page', 'manual/zsh'],
  'daemon/operator': ['operator/listener'],
  'daemon/operator-client': ['operator/client', 'operator/wait'],
  'daemon/programs': [
    'cli/host-commands',
    'cli/imdsctl',
    'cli/main',
    'cli/runner',
    'cli/store-commands',
    'runtime/version',
  ],
  'daemon/reports': ['guest/body'],
  'daemon/share': ['guest/connection-guard'],
  'daemon/snapshot': ['daemon/state-owner'],
  'redis/change-many': ['cli/change'],
  'redis/fleet': ['cli/hypervisors'],
  'redis/import': ['cli/export'],
  'redis/long-values': ['store/redis/lengths'],
  'redis/publish': ['store/redis/publisher'],
  'redis/reports': ['view/report-writer'],
  'redis/watch': ['store/redis/source'],
  'unit/api/http/openapi': ['api/http/openapi-about', 'api/http/openapi-parameters', 'api/http/openapi-responses'],
  'unit/api/region/parse': ['api/region/contradictions', 'api/region/schema'],
  'unit/cli/put': ['cli/report'],
  'unit/operator/server': ['operator/paths', 'pages/send'],
  'unit/pages/document': ['pages/style'],
  'unit/store/files/catalog': ['store/files/protection'],
  'unit/store/publish': ['store/backend'],
  'unit/store/publish-many': ['store/publisher'],
  'unit/view/journal': ['view/change', 'view/journal-writer'],
  'unit/view/persistence': ['view/disk', 'view/epoch', 'view/in-time', 'view/restore', 'view/state-files'],
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
  (file.startsWith('api/') ? ['api'] : ['daemon', 'redis']).some((folder) =>
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
