/**
 * How do we reach Redis?
 *
 * One place turns the store's URL and the credential files into ioredis connections. Files are read again at every reconnect, so
 * that a rotated password needs no restart.
 */
import { readFileSync } from 'node:fs'
import { Redis } from 'ioredis'

/** How to reach a Redis. */
export interface RedisSettings {
  /** `redis://[user@]host[:port][/db]`, or `rediss://` for TLS. A password in it works, but stands in the environment: prefer the file. */
  readonly url: string
  /** A file whose first line is the password. */
  readonly passwordFile?: string
}

/** No answer for so long: the connection is taken for dead. */
const COMMAND_TIMEOUT_MS = 5000

/** The URL without its password, for logs. */
export function describeUrl(url: string): string {
  const parsed = new URL(url)
  if (parsed.password !== '') parsed.password = '***'
  return parsed.toString()
}

/**
 * A connection that begins to connect at once, reconnects for ever (50 ms to 2 s apart, with jitter) and fails a command that has no
 * connection, or no answer within 5 s, instead of keeping it.
 */
export function connect({ url, passwordFile }: RedisSettings, connectionName: string): Redis {
  const password = () => passwordFile === undefined ? {} : { password: readFileSync(passwordFile, 'utf8').split(/\r?\n/, 1)[0] ?? '' }
  const redis: Redis = new Redis(url, {
    connectionName,
    connectTimeout: COMMAND_TIMEOUT_MS,
    commandTimeout: COMMAND_TIMEOUT_MS,
    maxRetriesPerRequest: 0,
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    keepAlive: 10_000,
    retryStrategy: (times) => {
      try {
        Object.assign(redis.options, password())
      } catch { /* the file is away for a moment: the last password stays */ }
      return Math.min(50 * 2 ** Math.min(times, 6), 2000) * (0.5 + Math.random() / 2)
    },
    ...password(),
  })
  return redis
}
