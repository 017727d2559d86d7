/**
 * What the tests of all shapes of Redis share (docs/configuration.md#shapes-of-redis): a record whose host name shows
 * its revision, a daemon that serves it, and guests that send requests without a pause.
 */
import { readFileSync } from 'node:fs'
import type { Test } from 'tap'
import type { RedisFiles } from '../../../src/store/url.ts'
import type { Publisher } from '../../../src/store/open.ts'
import type { RecordCipher } from '../../../src/store/crypto/record-cipher.ts'
import { RedisSource } from '../../../src/store/redis/source.ts'
import type { Source } from '../../../src/store/source.ts'
import { startDaemon, until, type TestDaemon } from '../programs/daemon.ts'
import { aLocalInstance } from '../fixtures/instance.ts'
import { openTestStore } from '../test-store.ts'

/** The variable for each file of the Redis settings. */
const VARIABLES = {
  passwordFile: 'IMDS_REDIS_PASSWORD_FILE',
  sentinelPasswordFile: 'IMDS_REDIS_SENTINEL_PASSWORD_FILE',
  caFile: 'IMDS_REDIS_CA_FILE',
  certFile: 'IMDS_REDIS_CERT_FILE',
  keyFile: 'IMDS_REDIS_KEY_FILE',
} as const satisfies Record<keyof RedisFiles, string>

/** The record of srv-n1. */
export function record(revision: number, change: Record<string, unknown> = {}): Record<string, unknown> {
  return aLocalInstance(1, revision, change)
}

/**
 * Starts a daemon without periodic resyncs: it learns of a change only by a notice, or by the resync after a reconnect.
 * `env` and `within` are those of startDaemon.
 */
export async function aDaemon(
  t: Test,
  url: string,
  files: RedisFiles = {},
  env: Record<string, string> = {},
  within: readonly string[] = [],
): Promise<TestDaemon> {
  const variables = Object.entries(files).map(([file, path]) => [VARIABLES[file as keyof RedisFiles], path as string])
  return await startDaemon(
    t,
    {
      IMDS_STORE: url,
      IMDS_REGION: 'gb1',
      IMDS_HYPERVISOR: 'hv1',
      IMDS_RESYNC_SECONDS: '3600',
      ...(Object.fromEntries(variables) as Record<string, string>),
      ...env,
    },
    within,
  )
}

/** The file of the password `secret`, which the Redis users of the tests have. */
export const SECRET: RedisFiles = { passwordFile: new URL('password', import.meta.url).pathname }

/** The users of deploy/redis.acl for daemon and publisher, as an ACL file that leaves the default user to the test. */
export const USERS = readFileSync(new URL('../../../deploy/redis.acl', import.meta.url), 'utf8')
  .replaceAll('>PASSWORD', '>secret')
  .replaceAll(/^user (?!imds-).*\n/gm, '')

/** The URL of a Redis with the name of a user. */
export function urlAs(user: string, { url }: { readonly url: string }): string {
  return url.replace('//', `//${user}@`)
}

/** A connected source, as a daemon has it. */
export async function aSource(
  t: Test,
  url: string,
  userDataMaxBytes: number,
  cipher?: RecordCipher,
  notice: (id: string) => void = () => undefined,
): Promise<Source> {
  const source = new RedisSource({
    settings: { url },
    region: 'gb1',
    hypervisor: 'hv1',
    cipher,
    userDataMaxBytes,
    announcement: {
      id: '0',
      foundOther: () => undefined,
      state: () => ({ version: '0', instances: 0, lagSeconds: 0 }),
      written: () => undefined,
    },
  })
  await new Promise<void>((connected) => {
    source.start({
      notice,
      connected,
      replaced: () => t.fail('the store was replaced'),
      disconnected: (reason) => t.fail(reason),
    })
    t.teardown(() => source.stop())
  })
  return source
}

/** Opens the store of the region gb1, and closes it when the test ends. */
export async function aStore(t: Test, url: string, files: RedisFiles = {}): Promise<Publisher> {
  return await openTestStore(t, { url, region: 'gb1', ...files })
}

/** Publishes a revision of `record`. Retries while a failover makes the store unusable. */
export async function publish(store: Publisher, revision: number): Promise<void> {
  await until(
    () =>
      store.put(record(revision)).then(
        () => true,
        () => false,
      ),
    `revision ${revision} to be published`,
    60_000,
  )
}

/** Waits until the guest at 127.0.0.N gets a revision of `aLocalInstance`. */
export async function serves(daemon: TestDaemon, revision: number, n = 1, timeoutMs = 30_000): Promise<void> {
  const hostname = `r${revision}.n${n}.example.com`
  await until(async () => (await hostnameOf(daemon, n)) === hostname, hostname, timeoutMs)
}

/** The host name that the guest at 127.0.0.N gets. */
export async function hostnameOf(daemon: TestDaemon, n = 1): Promise<string> {
  return (await daemon.get('/latest/meta-data/hostname', `127.0.0.${n}`)).body.toString()
}

/** Waits until a daemon has completed two more resyncs: the first may have begun before. */
export async function resynced(daemon: TestDaemon): Promise<void> {
  const completed = () => daemon.metric('imds_resyncs_total{result="completed"}')
  const before = await completed()
  await until(async () => (await completed()) > before + 1, 'two more resyncs')
}

/** Waits until the daemon is connected to its store, or is no longer connected. */
export async function connected(daemon: TestDaemon, isConnected = true): Promise<void> {
  await until(
    async () => ((await daemon.condition('store-lost')) === undefined) === isConnected,
    isConnected ? 'the store to be connected' : 'the store to be lost',
    20_000,
  )
}

/** The logged reasons why the store could not be used. */
export function reasons({ log }: TestDaemon): string[] {
  return log
    .filter(({ level, msg, reason }) => level !== 'debug' && msg.startsWith('the store ') && reason !== undefined)
    .map(({ reason }) => String(reason))
}

/** Waits until the daemon logs such a reason. */
export async function logsReason(daemon: TestDaemon, reason: RegExp): Promise<void> {
  await until(
    () => reasons(daemon).some((one) => reason.test(one)),
    `the reason ${String(reason)} (logged: ${reasons(daemon).join('; ')})`,
  )
}

/**
 * Sends requests as the guest at 127.0.0.1, four at a time without a pause. `stop` returns the responses and errors
 * other than 200.
 */
export function guestsWithoutPause(t: Test, daemon: TestDaemon): { stop(): Promise<unknown[]> } {
  let isStopped = false
  t.teardown(() => {
    isStopped = true
  })
  let requests = 0
  const failures: unknown[] = []
  const loops = Promise.all(
    Array.from({ length: 4 }, async () => {
      for (; !isStopped; requests++) {
        const answer = await daemon.get('/latest/meta-data/hostname').catch((error: unknown) => error)
        if ((answer as { status?: number }).status !== 200) failures.push(answer)
      }
    }),
  )
  return {
    stop: async () => {
      await until(() => requests > 100, 'a hundred requests')
      isStopped = true
      await loops
      return failures
    },
  }
}
