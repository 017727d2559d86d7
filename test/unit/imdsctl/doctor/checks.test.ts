import { expect, test } from 'vitest'
import type { DoctorState } from '../../../../src/imdsctl/doctor/hypervisor-state.ts'
import { adviceOf } from '../../../../src/store/redis/reasons.ts'
import { CHECKS } from '../../../../src/imdsctl/doctor/checks.ts'
import { runChecks } from '../../../../src/runtime/check.ts'
import { aLook, settingsOf, SILENT } from '../../../support/fixtures/look.ts'

test('each check has its own name, of a width that fits its column', () => {
  const names = CHECKS.map(({ code }) => code)
  expect(new Set(names).size).toBe(names.length)
  expect(names.filter((name) => !/^[a-z][a-z-]{2,14}$/.test(name))).toEqual([])
})

test('no check throws where nothing can be seen', async () => {
  const results = await runChecks(
    CHECKS,
    aLook({
      settings: settingsOf({}, { config: undefined }),
      file: () => ({ kind: 'unseen', code: 'EACCES' }),
      readiness: SILENT,
      firewall: SILENT,
      store: () => Promise.resolve([]),
    }),
  )
  expect(results.filter(({ text }) => text.startsWith('cannot be checked'))).toEqual([])
  expect(results.map(({ code }) => code)).toContain('daemon')
})

/** A store that cannot be used, or one that can although this is wrong. */
const problem = (error: string, code = ''): Partial<DoctorState> => ({
  store: () => Promise.resolve([{ severity: 'failure', ...adviceOf(Object.assign(new Error(error), { code })) }]),
})
const impaired = (error: string): Partial<DoctorState> => ({
  store: () => Promise.resolve([{ severity: 'warning', ...adviceOf(new Error(error)) }]),
})
const modes =
  (path: string, mode: number): DoctorState['file'] =>
  (asked) => ({ kind: 'file', mode: asked === path ? mode : 0o600, size: 1024 })

/** The faults of test/faults and test/imdsd/doctor.test.ts: what one sees, and what to do. */
test.each<[fault: string, look: Partial<DoctorState>, finding: RegExp, remedy: RegExp]>([
  ['Redis stopped', problem('connect ECONNREFUSED 10.0.0.1:6379'), /^connect ECONN/, /^start Redis$/],
  ['Redis paused or cut off', problem('connect ETIMEDOUT'), /TIMEDOUT/, /network reaches it$/],
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
    'another store than configured',
    { settings: settingsOf({ IMDS_STORE: 'redis://10.0.0.2' }) },
    /^imdsd uses redis:\/\/10\.0\.0\.1/,
    /^systemctl restart imds$/,
  ],
  ['the daemon stopped', { readiness: SILENT }, /^it does not answer$/, /^systemctl start imds,/],
  ['an upgrade without a restart', { version: '1.1.0' }, /^imdsd is 1\.0\.0/, /^systemctl restart imds$/],
  [
    'a variable wrong',
    { settings: settingsOf({}, { faults: [{ variable: 'IMDS_REGION', message: 'is not set' }] }) },
    /^IMDS_REGION is not set$/,
    /^correct it in \/etc\/imds\/imds\.env/,
  ],
  ['an open token key', { file: modes('/var/lib/imds/token-key', 0o644) }, /every user can read/, /replace the secret/],
])('%s: the finding has the remedy', async (_fault, look, finding, remedy) => {
  const found = (await runChecks(CHECKS, aLook(look))).flatMap((one) =>
    one.severity !== 'ok' && finding.test(one.text) ? [one.remedy] : [],
  )
  expect(new Set(found)).toEqual(new Set([expect.stringMatching(remedy)]))
})
