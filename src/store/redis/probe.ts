/**
 * Tries the store in Redis as a program would use it, and writes nothing. A right to write is tried with a command that
 * Redis refuses for another reason, because it checks the rights of the user first. What a running daemon finds itself is
 * no finding: an empty store, and what it may not announce or report.
 */
import { formatHostPort } from '../../runtime/host-port.ts'
import { runPipeline, close, connectTo, type RedisConnection, type RedisSettings } from './connection.ts'
import { ok, warning, type Finding } from '../../runtime/check.ts'
import { adviceOf } from './reasons.ts'
import { connectToRegion } from './region-server.ts'
import { keysOf, type Keys } from './keys.ts'
import { checkIndex, lengthCommands } from './lengths.ts'

const CONNECTION_NAME = 'imds-check'
const WORST_FIRST = ['failure', 'warning', 'ok'] as const
/** SET with options that exclude each other. */
const INVALID_SET_OPTIONS = ['', 'nx', 'xx']
const SYNTAX_ERROR = 'ERR syntax error'

/**
 * Tries the store as the daemon of `hypervisor`, or undefined: as a publisher. Returns the worst first; a failure: the
 * store cannot be used. Rejects with the reason if it cannot be reached.
 */
export async function probeRedis(
  settings: RedisSettings,
  region: string,
  hypervisor: string | undefined,
): Promise<readonly Finding[]> {
  const keys = keysOf(region)
  const connection = await connectToRegion(settings, keys.instances, CONNECTION_NAME)
  try {
    const { redis, node, role } = connection
    const found = [
      ok(
        `connected to ${formatHostPort(node)} ${settings.url.startsWith('rediss') ? 'with' : 'without'} TLS; ` +
          `its role is ${role}`,
      ),
    ]
    const [initialised, memory] = await runPipeline(redis, [
      ['exists', keys.region],
      ['info', 'memory'],
    ])
    found.push(
      initialised instanceof Error
        ? failureOf(initialised)
        : ok(`the region ${region} is ${initialised === 1 ? '' : 'not '}initialised`),
    )
    const policy = /^maxmemory_policy:(\S+)/m.exec(String(memory))?.[1]
    if (policy !== undefined && policy !== 'noeviction')
      found.push(
        warning(
          `Redis removes records when its memory is full: its maxmemory-policy is ${policy}`,
          'set maxmemory-policy to noeviction in its configuration',
        ),
      )
    found.push(...(await probeAppendOnlyFile(connection, keys)))
    const ofRole =
      hypervisor === undefined
        ? await probePublisher(connection, keys)
        : await probeDaemon(connection, settings, keys, hypervisor)
    const each = [...new Map([...found, ...ofRole].map((finding) => [finding.text, finding])).values()]
    return WORST_FIRST.flatMap((severity) => each.filter((finding) => finding.severity === severity))
  } finally {
    close(connection)
  }
}

/**
 * Redis loads its append-only file as the default user. A right that this user lacks makes it skip each script's writes:
 * https://github.com/redis/redis/pull/14545 repairs that.
 */
async function probeAppendOnlyFile({ redis }: RedisConnection, keys: Keys): Promise<readonly Finding[]> {
  const [persistence, ...tried] = await runPipeline(redis, [
    ['info', 'persistence'],
    ['acl', 'dryrun', 'default', 'exec'],
    ['acl', 'dryrun', 'default', 'hset', keys.instances, '', ''],
    ['acl', 'dryrun', 'default', 'zadd', keys.ranges(''), 0, ''],
  ])
  if (!/^aof_enabled:1/m.test(String(persistence))) return []
  const error = tried.find((reply) => reply instanceof Error)
  // Redis 6.2 cannot be asked
  if (error !== undefined) return /unknown subcommand/i.test(error.message) ? [] : [warningOf(error, CANNOT_TRY)]
  return tried.every((reply) => reply === 'OK') ? [] : [LOSES_RECORDS]
}

const CANNOT_TRY = 'it is not known whether Redis can load its append-only file: '
const LOSES_RECORDS = warning(
  'the next start of Redis loses every record: it loads its append-only file as the user default, who has no rights',
  'ACL SETUSER default off ~* &* +@all, then ACL SAVE or CONFIG REWRITE, on every server (configuration.md#users-in-redis)',
)

async function probeDaemon(
  { redis, node }: RedisConnection,
  settings: RedisSettings,
  keys: Keys,
  hypervisor: string,
): Promise<readonly Finding[]> {
  const found = failuresIn(
    await runPipeline(redis, [
      ...lengthCommands(keys.instance('')),
      ['hmget', keys.instance(''), 'record'],
      ['exists', keys.tombstone('')],
      ['hstrlen', keys.addresses(''), ''],
      ['hget', keys.addresses(''), ''],
      ['zrevrangebylex', keys.ranges(''), '-', '-'],
    ]),
  )
  const addFailure = (error: unknown) => found.push(failureOf(error))
  await countRecords(redis, keys, hypervisor).then(
    (count) => found.push(ok(`records that name ${hypervisor}: ${count}`)),
    addFailure,
  )
  const notices = await connectTo(settings, node, CONNECTION_NAME)
  await notices.redis.subscribe(keys.notices(hypervisor)).catch(addFailure)
  close(notices)
  if (!found.some(({ severity }) => severity === 'failure'))
    found.push(ok(`the Redis user may read the region and receive the notices of ${hypervisor}`))
  return found
}

async function probePublisher({ redis }: RedisConnection, keys: Keys): Promise<readonly Finding[]> {
  const [read, written, script] = await runPipeline(redis, [
    ['hget', keys.instances, ''],
    ['set', keys.region, ...INVALID_SET_OPTIONS],
    ['eval', 'return 1', 1, keys.region],
  ])
  const failures = failuresIn([read, isSyntaxError(written) ? 1 : written, script])
  return failures.length === 0 ? [ok('the Redis user may read and write the region')] : failures
}

/** How many records name a hypervisor. */
async function countRecords(redis: RedisConnection['redis'], keys: Keys, hypervisor: string): Promise<number> {
  await checkIndex((commands) => runPipeline(redis, commands), keys.hypervisor(hypervisor))
  return Object.keys(await redis.hgetall(keys.hypervisor(hypervisor))).length
}

function isSyntaxError(reply: unknown): boolean {
  return reply instanceof Error && reply.message.startsWith(SYNTAX_ERROR)
}

function failuresIn(replies: readonly unknown[]): Finding[] {
  return replies.filter((reply) => reply instanceof Error).map(failureOf)
}

function failureOf(error: unknown): Finding {
  return { severity: 'failure', ...adviceOf(error) }
}

function warningOf(error: unknown, consequence: string): Finding {
  const { text, remedy } = adviceOf(error)
  return warning(consequence + text, remedy)
}
