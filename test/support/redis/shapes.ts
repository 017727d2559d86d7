/**
 * Shared by the tests of every deployment shape of Redis: a record whose revision is visible, a host that serves it, and guests that send requests
 * without a pause.
 */
import type { Test } from 'tap'
import type { RedisFiles } from '../../../src/store/url.ts'
import { openStore, type Publisher } from '../../../src/store/open.ts'
import type { Announcement } from '../../../src/store/redis/source.ts'
import { startDaemon, until, type TestDaemon } from '../programs/daemon.ts'
import { anInstance } from '../fixtures/instance.ts'

/** How a test's files are named to the daemon. */
const VARIABLES = {
  passwordFile: 'IMDS_REDIS_PASSWORD_FILE', sentinelPasswordFile: 'IMDS_REDIS_SENTINEL_PASSWORD_FILE',
  caFile: 'IMDS_REDIS_CA_FILE', certFile: 'IMDS_REDIS_CERT_FILE', keyFile: 'IMDS_REDIS_KEY_FILE',
} as const satisfies Record<keyof RedisFiles, string>

/** A record for 127.0.0.1 whose host name contains its revision. */
export function record(revision: number, change: Record<string, unknown> = {}): Record<string, unknown> {
  const interfaces = [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['127.0.0.1/8'] }]
  return anInstance({ id: 'srv-n1', revision, fqdn: `r${String(revision)}.example.com`, interfaces, ...change })
}

/**
 * Starts a daemon that learns of a change in time only by a notice or by the resync after a reconnect. `env` and `within` as in
 * startDaemon.
 */
export async function aDaemon(t: Test, url: string, files: RedisFiles = {}, env: Record<string, string> = {}, within: readonly string[] = []): Promise<TestDaemon> {
  const named = Object.entries(files).map(([file, path]) => [VARIABLES[file as keyof RedisFiles], path as string])
  const daemon = await startDaemon({
    IMDS_STORE: url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1', IMDS_RESYNC_SECONDS: '3600', ...Object.fromEntries(named) as Record<string, string>, ...env,
  }, within)
  t.teardown(() => daemon.stop())
  return daemon
}

/** For a source without a daemon around it. */
export const ANNOUNCEMENT: Announcement = { state: () => ({ version: '0', instances: 0 }), failed: () => { /* it may write */ } }

/** Opens the store of gb1 until the end of the test. */
export async function aStore(t: Test, url: string, files: RedisFiles = {}): Promise<Publisher> {
  const store = await openStore({ url, region: 'gb1', ...files })
  t.teardown(() => store.close())
  return store
}

/** Publishes a revision of `record`, and retries if a failover takes longer than the library waits. */
export async function publish(store: Publisher, revision: number): Promise<void> {
  await until(() => store.put(record(revision)).then(() => true, () => false), `revision ${String(revision)} to be published`, 60_000)
}

/** Waits until the guest at 127.0.0.1 sees a revision of `record`. */
export async function serves(daemon: TestDaemon, revision: number, timeoutMs = 15_000): Promise<void> {
  await until(async () => (await daemon.get('/latest/meta-data/hostname')).body.toString() === `r${String(revision)}.example.com`, `revision ${String(revision)}`, timeoutMs)
}

/** Waits until the daemon is connected to a store, or is not. */
export async function connected(daemon: TestDaemon, is = true): Promise<void> {
  await until(async () => await daemon.metric('imds_store_connected') === (is ? 1 : 0), is ? 'the store to be connected' : 'the loss to be seen', 20_000)
}

/** The reasons in the log, at the default level, why the store could not be used. */
export function reasons({ log }: TestDaemon): string[] {
  return log.filter(({ level, msg, reason }) => level !== 'debug' && msg.startsWith('the store ') && reason !== undefined).map(({ reason }) => String(reason))
}

/** Waits until the log has such a reason. */
export async function told(daemon: TestDaemon, reason: RegExp): Promise<void> {
  await until(() => reasons(daemon).some((one) => reason.test(one)), `the reason ${String(reason)} (told: ${reasons(daemon).join('; ')})`)
}

/** Sends requests as the guest at 127.0.0.1, four at a time without a pause. `stop` returns what was not a 200. */
export function guestsWithoutPause(t: Test, daemon: TestDaemon): { stop(): Promise<unknown[]> } {
  let asking = true
  t.teardown(() => { asking = false })
  let asked = 0
  const failures: unknown[] = []
  const loops = Promise.all(Array.from({ length: 4 }, async () => {
    for (; asking; asked++) {
      const answer = await daemon.get('/latest/meta-data/hostname').catch((error: unknown) => error)
      if ((answer as { status?: number }).status !== 200) failures.push(answer)
    }
  }))
  return {
    stop: async () => {
      await until(() => asked > 100, 'a hundred answers')
      asking = false
      await loops
      return failures
    },
  }
}
