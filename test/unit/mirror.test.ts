import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { stripTypeScriptTypes } from 'node:module'
import { join } from 'node:path'
import { expect, test } from 'vitest'

const ROOT = new URL('../../', import.meta.url).pathname

/** Tests of the repository, not of a source file. */
const OF_THE_REPOSITORY = ['docs.test.ts', 'layers.test.ts', 'mirror.test.ts']

/**
 * Source files without a unit test -> the test that holds them: what they do needs a process, a port or a real server,
 * or shows only in the files that use them.
 */
const ELSEWHERE: Readonly<Record<string, string>> = {
  'api/api.ts': 'api/program',
  'api/auth/account-choice.ts': 'api/account-choice',
  'api/auth/bearer.ts': 'api/tokens',
  'api/auth/grants.ts': 'api/grants',
  'api/auth/token-endpoint.ts': 'api/tokens',
  'api/auth/token-families.ts': 'api/grants',
  'api/auth/known-addresses.ts': 'api/tokens',
  'api/auth/requester.ts': 'api/account-changes',
  'api/auth/tokens.ts': 'api/tokens',
  'api/changes/advance.ts': 'api/restored',
  'api/changes/allocate.ts': 'api/properties',
  'api/database/backup-file.ts': 'api/backup',
  'api/recovery.ts': 'api/backup',
  'api/database/backup.ts': 'api/backup',
  'api/database/restore.ts': 'api/backup',
  'api/database/tables.ts': 'api/backup',
  'api/database/binaries.ts': 'api/database',
  'api/changes/account-changes.ts': 'api/account-changes',
  'api/compute/server.ts': 'api/compute',
  'api/changes/actions.ts': 'api/server-actions',
  'api/changes/action-queue.ts': 'api/compute',
  'api/changes/cloud-ips.ts': 'api/cloud-ips',
  'api/changes/create-server.ts': 'api/servers',
  'api/changes/create-snapshot.ts': 'api/server-actions',
  'api/changes/sign-ins.ts': 'api/grants',
  'api/database/embedded.ts': 'api/database',
  'api/changes/finish-server.ts': 'api/publish',
  'api/changes/kept-rows.ts': 'api/account-limits',
  'api/changes/limits.ts': 'api/account-limits',
  'api/changes/migrations.ts': 'api/compute',
  'api/changes/members.ts': 'api/account-choice',
  'api/database/migrate.ts': 'api/database',
  'api/database/migrations/0001-first.ts': 'api/database',
  'api/database/notifications.ts': 'api/compute',
  'api/database/open.ts': 'api/database',
  'api/database/outbox.ts': 'api/publish',
  'api/changes/placement.ts': 'api/compute',
  'api/database/postmaster.ts': 'api/database',
  'api/database/prepared.ts': 'api/cloud-ips',
  'api/changes/record-limits.ts': 'api/record-limits',
  'api/database/transaction.ts': 'api/publish',
  'api/changes/visible-images.ts': 'api/server-actions',
  'api/demo.ts': 'api/demo',
  'api/mail/sender.ts': 'api/mail',
  'api/mail/smtp.ts': 'api/mail',
  'api/main.ts': 'api/program',
  'api/metrics.ts': 'api/program',
  'api/model/account-limits.ts': 'api/account-limits',
  'api/model/database-server-states.ts': 'api/database-servers',
  'api/model/server-type-states.ts': 'api/region',
  'api/publish/claim.ts': 'api/restored',
  'api/publish/survey.ts': 'api/restored',
  'api/publish/outbox-publisher.ts': 'api/publish',
  'api/publish/turns.ts': 'api/publish',
  'api/http/read-share.ts': 'api/account-changes',
  'api/region/apply.ts': 'api/region',
  'api/region/credentials.ts': 'api/region',
  'api/resources/accounts.ts': 'api/accounts',
  'api/resources/api-clients.ts': 'api/api-clients',
  'api/resources/applications.ts': 'api/applications',
  'api/resources/catalog.ts': 'api/catalog',
  'api/resources/cloud-ips.ts': 'api/cloud-ips',
  'api/resources/collaborations.ts': 'api/collaborations',
  'api/resources/config-maps.ts': 'api/config-maps',
  'api/resources/database-servers.ts': 'api/database-servers',
  'api/resources/unimplemented.ts': 'api/catalog',
  'api/resources/images.ts': 'api/server-actions',
  'api/resources/interfaces.ts': 'api/servers',
  'api/resources/nested.ts': 'api/catalog',
  'api/resources/server-actions.ts': 'api/server-actions',
  'api/resources/server-groups.ts': 'api/cloud-ips',
  'api/resources/servers.ts': 'api/servers',
  'api/resources/site.ts': 'api/region',
  'api/resources/users.ts': 'api/users',
  'api/http/unreadable.ts': 'api/listeners',
  'cli/imdsctl.ts': 'daemon/programs',
  'daemon/daemon.ts': 'daemon/life',
  'daemon/guest-side.ts': 'daemon/firewall',
  'firewall/agent/agent.ts': 'daemon/firewall-keeping',
  'firewall/agent/nft.ts': 'daemon/firewall-table',
  'firewall/agent/refused.ts': 'daemon/firewall-keeping',
  'guest/connection-guard.ts': 'daemon/share',
  'guest/exchange.ts': 'contract/transport',
  'guest/linger.ts': 'daemon/bodies',
  'guest/server.ts': 'contract/transport',
  'library.ts': 'daemon/life',
  'daemon/main.ts': 'daemon/life',
  'operator/client.ts': 'daemon/operator-client',
  'operator/listener.ts': 'daemon/operator',
  'operator/paths.ts': 'unit/operator/server',
  'operator/wait.ts': 'daemon/operator-client',
  'runtime/addresses.ts': 'daemon/addresses',
  'runtime/as-user.ts': 'daemon/environment',
  'runtime/become-owner.ts': 'api/root',
  'runtime/trusted-path.ts': 'daemon/trusted-path',
  'start.ts': 'api/demo',
  'store/backend.ts': 'unit/store/publish',
  'store/files/protection.ts': 'unit/store/files/catalog',
  'store/probe.ts': 'redis/probe',
  'store/publisher.ts': 'unit/store/publish-many',
  'store/redis/announcements.ts': 'redis/announcements',
  'store/redis/lengths.ts': 'redis/long-values',
  'store/redis/probe.ts': 'redis/probe',
  'store/redis/publisher.ts': 'redis/publish',
  'store/redis/source.ts': 'redis/watch',
  'runtime/version.ts': 'daemon/programs',
  'view/change.ts': 'unit/view/journal',
  'view/disk.ts': 'unit/view/persistence',
  'view/epoch.ts': 'unit/view/persistence',
  'view/in-time.ts': 'unit/view/persistence',
  'view/journal-writer.ts': 'unit/view/journal',
  'view/restore.ts': 'unit/view/persistence',
  'view/state-files.ts': 'unit/view/persistence',
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

test('a unit test has the path of its source file; -fuzz is its variant with random input', () => {
  expect([...tested].filter((file) => !sources.includes(file))).toEqual([])
})

test('each source file with code has a unit test, or an entry that names the test which covers it', () => {
  expect(sources.filter((file) => !tested.has(file) && !(file in ELSEWHERE) && !hasOnlyTypes(file))).toEqual([])
})

test('no entry is superfluous, and the test of each exists', () => {
  expect(
    Object.keys(ELSEWHERE).filter((file) => tested.has(file) || !sources.includes(file) || hasOnlyTypes(file)),
  ).toEqual([])
  expect(Object.values(ELSEWHERE).filter((name) => !existsSync(join(ROOT, 'test', `${name}.test.ts`)))).toEqual([])
})
