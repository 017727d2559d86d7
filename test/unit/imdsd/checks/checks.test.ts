import { expect, test } from 'vitest'
import type { DoctorState } from '../../../../src/imdsd/checks/hypervisor-state.ts'
import { adviceOf } from '../../../../src/store/redis/reasons.ts'
import { CHECKS, NOT_OF_DAEMON, OF_DAEMON } from '../../../../src/imdsd/checks/checks.ts'
import { runChecks } from '../../../../src/runtime/check.ts'
import { aLook, metricsOf, readinessOf, settingsOf, SILENT } from '../../../support/fixtures/look.ts'

test('each check has its own name, of a width that fits its column', () => {
  const names = CHECKS.map(({ name }) => name)
  expect(new Set(names).size).toBe(names.length)
  expect(names.filter((name) => !/^[a-z][a-z-]{2,14}$/.test(name))).toEqual([])
})

test('no check throws where nothing can be seen', async () => {
  const results = await runChecks(
    CHECKS,
    aLook({
      settings: settingsOf({}, { config: undefined }),
      file: () => ({ kind: 'unseen', code: 'EACCES' }),
      freeBytes: () => undefined,
      readiness: SILENT,
      metrics: SILENT,
      firewall: SILENT,
      store: () => Promise.resolve([]),
      journal: () => Promise.resolve({ kind: 'unreadable', reason: 'EACCES' }),
    }),
  )
  expect(results.filter(({ text }) => text.startsWith('cannot be checked'))).toEqual([])
  expect(results.map(({ check }) => check)).toContain('daemon')
})

test('each check is run by the daemon for its status page, or named there as one that it cannot run', () => {
  const names = OF_DAEMON.map(({ name }) => name)
  expect(
    CHECKS.map(({ name }) => name).filter((name) => !names.includes(name) && !NOT_OF_DAEMON.includes(name)),
  ).toEqual([])
  expect(NOT_OF_DAEMON).toContain('ports')
})

const DAY_MS = 86_400_000
/** A store that cannot be used, or one that can although this is wrong. */
const problem = (error: string, code = ''): Partial<DoctorState> => ({
  store: () => Promise.resolve([{ state: 'failure', ...adviceOf(Object.assign(new Error(error), { code })) }]),
})
const impaired = (error: string): Partial<DoctorState> => ({
  store: () => Promise.resolve([{ state: 'warning', ...adviceOf(new Error(error)) }]),
})
const journalOf = (state: Awaited<ReturnType<DoctorState['journal']>>) => ({ journal: () => Promise.resolve(state) })
const modes =
  (path: string, mode: number): DoctorState['file'] =>
  (asked) => ({ kind: 'file', mode: asked === path ? mode : 0o600, size: 1024 })
const MEMORY = 'until then guests are served from memory'

const HALFWAY = 'imds-node installed\nimdsctl config-files\nimds half-configured\n'

/** The faults of test/faults and test/imdsd/doctor.test.ts: what one sees, and what to do. */
test.each<[fault: string, look: Partial<DoctorState>, finding: RegExp, remedy: RegExp]>([
  ['Redis stopped', problem('connect ECONNREFUSED 10.0.0.1:6379'), /^connect ECONN/, RegExp(`start Redis; ${MEMORY}`)],
  ['Redis paused or cut off', problem('connect ETIMEDOUT'), /TIMEDOUT/, RegExp(`network reaches it; ${MEMORY}`)],
  ['Redis lost', { readiness: readinessOf({ connected: false }) }, /^imdsd is not connected/, /^start Redis or repair/],
  ['two with one name', { readiness: readinessOf({ duplicate: true }) }, /^another daemon/, /its own IMDS_HYPERVISOR/],
  [
    'Redis full',
    impaired("OOM command not allowed when used memory > 'maxmemory'."),
    /^Redis is out of memory/,
    /^raise/,
  ],
  ['Redis without disk', impaired('MISCONF Redis is configured to save'), /^Redis refuses changes/, /full disk/],
  ['Redis a replica', problem('READONLY You can not write'), /^this Redis is a read-only replica/, /name the primary/],
  ['a right is missing', problem("NOPERM can't run the 'hget' command"), /^the Redis user may not/, /^give it \+hget/],
  ['no password', problem('NOAUTH Authentication required.'), /^Redis requires a password/, /IMDS_REDIS_PASSWORD_FILE/],
  ['an expired certificate', problem('x', 'CERT_HAS_EXPIRED'), /^the server's certificate has expired/, /^renew it/],
  ['an unknown error of Redis', problem('ERR unknown'), /^ERR unknown/, /^see the log of Redis/],
  [
    'Redis emptied',
    { readiness: readinessOf({ unconfirmed: 1 }) },
    /^1 instance that the store no longer has/,
    /emptied: publish again \(imdsctl import; imds-api does it by itself\)$/,
  ],
  [
    'a record missing',
    { readiness: readinessOf({ instances: 4, unconfirmed: 1, unconfirmedInstances: ['srv-g2, revision 5'] }) },
    /served nevertheless; srv-g2, revision 5$/,
    /imdsctl remove ID --revision N$/,
  ],
  [
    'a record half written',
    { readiness: readinessOf({ faulty: 1, faultyRecords: ['srv-g2: /id is missing'] }) },
    /^1 record cannot be used; srv-g2: \/id is missing$/,
    /^publish them again, corrected/,
  ],
  [
    'an address claimed twice',
    { readiness: readinessOf({ contestedAddresses: 1, contested: ['default 10.0.0.2: srv-a, srv-b'] }) },
    /^1 address claimed by several instances; default 10\.0\.0\.2: srv-a, srv-b$/,
    /without the address/,
  ],
  ['a name in no record', { readiness: readinessOf({ hint: 'no record names hv1' }) }, /^no record/, /IMDS_HYPERVISOR/],
  [
    'no comparison',
    { readiness: readinessOf({ viewAgeSeconds: 999 }) },
    /999 s ago$/,
    /^journalctl .* says why it fails/,
  ],
  [
    'another store than configured',
    { settings: settingsOf({ IMDS_STORE: 'redis://10.0.0.2' }) },
    /^imdsd uses redis:\/\/10\.0\.0\.1/,
    /^systemctl restart imds$/,
  ],
  [
    'an upgrade that stopped halfway',
    { run: (command) => Promise.resolve(command[0] === 'dpkg-query' ? { status: 1, stdout: HALFWAY } : undefined) },
    /^the Debian package imds is half-configured/,
    /^dpkg --configure imds$/,
  ],
  ['the daemon stopped', { readiness: SILENT }, /^it does not answer$/, /^systemctl start imds,/],
  ['an upgrade without a restart', { version: '1.1.0' }, /^imdsd is 1\.0\.0/, /^systemctl restart imds$/],
  [
    'a variable wrong',
    { settings: settingsOf({}, { faults: [{ variable: 'IMDS_REGION', message: 'is not set' }] }) },
    /^IMDS_REGION is not set$/,
    /^correct it in \/etc\/imds\/imds\.env/,
  ],
  [
    'the address gone',
    { hasAddress: () => Promise.resolve(false) },
    /^no interface/,
    /^systemctl restart imds-address/,
  ],
  ['few descriptors', { metrics: metricsOf({ process_max_fds: 30 }) }, /^30 of 30 are open$/, /LimitNOFILE/],
  ['the disk full', { freeBytes: () => 0 }, /^\/var\/lib\/imds has 0\.0 KiB left/, /^make room/],
  [
    'the disk read-only',
    { metrics: metricsOf({ imds_state_writes_failing: 1 }) },
    /^writes fail:/,
    /^make room or repair the disk/,
  ],
  ['an open state directory', { file: modes('/var/lib/imds', 0o755) }, /other users can enter/, /^chmod 700 \/var/],
  ['an open token key', { file: modes('/var/lib/imds/token-key', 0o644) }, /every user can read/, /replace the secret/],
  ['a stale journal', journalOf({ kind: 'read', ageMs: 9 * DAY_MS, instances: 1 }), /^it is stale/, /writes it again/],
  ['a damaged journal', journalOf({ kind: 'unreadable', reason: 'it is torn' }), /it is torn$/, /writes it again/],
  [
    'the firewall stopped',
    { readiness: readinessOf({ firewall: { required: true, applied: false, ageSeconds: 0 } }) },
    /^its rules are not applied/,
    /^systemctl restart imds-firewall/,
  ],
])('%s: the finding has the remedy', async (_fault, look, finding, remedy) => {
  const found = (await runChecks(CHECKS, aLook(look))).flatMap((one) =>
    one.state !== 'ok' && finding.test(one.text) ? [one.remedy] : [],
  )
  expect(new Set(found)).toEqual(new Set([expect.stringMatching(remedy)]))
})
