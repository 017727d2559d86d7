/**
 * Tries the store in Redis as a program would use it, and writes nothing. A right to write is tried with a command that
 * Redis refuses for another reason, because it checks the rights of the user first.
 */
import { formatHostPort } from '../../runtime/host-port.ts'
import { runPipeline, close, connectTo, type RedisConnection, type RedisSettings } from './connection.ts'
import { adviceOf, type Advice } from './reasons.ts'
import { connectToRegion } from './region-server.ts'
import { keysOf, type Keys } from './keys.ts'
import { checkIndex, lengthCommands } from './lengths.ts'

/**
 * The findings, a line each. `warnings`: the store can be used, but an operator should look. `problems`: why the store
 * cannot be used; empty: it can.
 */
export interface Probe {
  readonly findings: readonly string[]
  readonly warnings: readonly Advice[]
  readonly problems: readonly Advice[]
}

const CONNECTION_NAME = 'imds-check'
/** SET with options that exclude each other. */
const INVALID_SET_OPTIONS = ['', 'nx', 'xx']
const SYNTAX_ERROR = 'ERR syntax error'
const UNNAMED_REMEDY = 'unless this hypervisor is new, compare IMDS_HYPERVISOR with the names that imdsctl list prints'

/**
 * Tries the store as the daemon of `hypervisor`, or undefined: as a publisher. Rejects with the reason if it cannot be
 * reached.
 */
export async function probeRedis(
  settings: RedisSettings,
  region: string,
  hypervisor: string | undefined,
): Promise<Probe> {
  const keys = keysOf(region)
  const connection = await connectToRegion(settings, keys.instances, CONNECTION_NAME)
  try {
    const { redis, node, role } = connection
    const findings = [
      `connected to ${formatHostPort(node)} ${settings.url.startsWith('rediss') ? 'with' : 'without'} TLS; ` +
        `its role is ${role}`,
    ]
    const warnings: Advice[] = []
    const [initialised, memory] = await runPipeline(redis, [
      ['exists', keys.region],
      ['info', 'memory'],
    ])
    if (initialised === 1) findings.push(`the region ${region} is initialised`)
    else if (!(initialised instanceof Error))
      warnings.push({
        text: `the region ${region} is not initialised: Redis was emptied, or the region is new`,
        remedy: 'publish again (imdsctl import; imds-api does it by itself), or run imdsctl init for a new region',
      })
    const policy = /^maxmemory_policy:(\S+)/m.exec(String(memory))?.[1]
    if (policy !== undefined && policy !== 'noeviction')
      warnings.push({
        text: `Redis removes records when its memory is full: its maxmemory-policy is ${policy}`,
        remedy: 'set maxmemory-policy to noeviction in its configuration',
      })
    const part =
      hypervisor === undefined
        ? await probePublisher(connection, keys)
        : await probeDaemon(connection, settings, keys, hypervisor, initialised === 1)
    const denied = initialised instanceof Error ? [adviceOf(initialised)] : []
    return {
      findings: [...findings, ...part.findings],
      warnings: [...warnings, ...part.warnings],
      problems: withoutRepeats([...denied, ...part.problems]),
    }
  } finally {
    close(connection)
  }
}

async function probeDaemon(
  { redis, node }: RedisConnection,
  settings: RedisSettings,
  keys: Keys,
  hypervisor: string,
  isInitialised: boolean,
): Promise<Probe> {
  const problems = problemsOf(
    await runPipeline(redis, [
      ...lengthCommands(keys.instance('')),
      ['hmget', keys.instance(''), 'record'],
      ['exists', keys.tombstone('')],
      ['hstrlen', keys.addresses(''), ''],
      ['hget', keys.addresses(''), ''],
      ['zrevrangebylex', keys.ranges(''), '-', '-'],
    ]),
  )
  const findings: string[] = []
  const warnings: Advice[] = []
  const problem = (error: unknown) => problems.push(adviceOf(error))
  await countRecords(redis, keys, hypervisor).then(({ isNamed, text }) => {
    if (isNamed) findings.push(text)
    else if (isInitialised) warnings.push({ text, remedy: UNNAMED_REMEDY })
  }, problem)
  const notices = await connectTo(settings, node, CONNECTION_NAME)
  await notices.redis.subscribe(keys.notices(hypervisor)).catch(problem)
  close(notices)
  if (problems.length === 0)
    findings.push(`the Redis user may read the region and receive the notices of ${hypervisor}`)
  const noReports = keys.reports(hypervisor, '') // no instance has this id
  const [announced, reported, removed] = await runPipeline(redis, [
    ['set', keys.announcement(hypervisor), ...INVALID_SET_OPTIONS],
    ['set', noReports, ...INVALID_SET_OPTIONS],
    ['del', noReports],
  ])
  const [notAnnounced] = isSyntaxError(announced) ? [] : [announced]
  const [notReported] = [...(isSyntaxError(reported) ? [] : [reported]), ...(removed instanceof Error ? [removed] : [])]
  if (refusesWrites(notAnnounced)) return { findings, warnings: [...warnings, adviceOf(notAnnounced)], problems }
  const note = (error: unknown, fine: string, wrong: string) => {
    if (error === undefined) findings.push(fine)
    else {
      const { text, remedy } = adviceOf(error)
      warnings.push({ text: `${wrong}: ${text}`, remedy })
    }
  }
  note(
    notAnnounced,
    `the Redis user may announce ${hypervisor}`,
    `the Redis user cannot announce ${hypervisor}, so publishers warn of an unknown hypervisor`,
  )
  note(
    notReported,
    `the Redis user may write what the guests of ${hypervisor} report`,
    `the Redis user cannot write what guests report, so only ${hypervisor} has that`,
  )
  return { findings, warnings, problems }
}

async function probePublisher({ redis }: RedisConnection, keys: Keys): Promise<Probe> {
  const [read, written, script] = await runPipeline(redis, [
    ['hget', keys.instances, ''],
    ['set', keys.region, ...INVALID_SET_OPTIONS],
    ['eval', 'return 1', 1, keys.region],
  ])
  const problems = problemsOf([read, isSyntaxError(written) ? 1 : written, script])
  const findings = problems.length === 0 ? ['the Redis user may read and write the region'] : []
  return { findings, warnings: [], problems }
}

/** How many records name a hypervisor, in words. `isNamed`: one does. */
async function countRecords(
  redis: RedisConnection['redis'],
  keys: Keys,
  hypervisor: string,
): Promise<{ readonly isNamed: boolean; readonly text: string }> {
  await checkIndex((commands) => runPipeline(redis, commands), keys.hypervisor(hypervisor))
  const count = Object.keys(await redis.hgetall(keys.hypervisor(hypervisor))).length
  if (count > 0)
    return { isNamed: true, text: `${count} ${count === 1 ? 'record names' : 'records name'} ${hypervisor}` }
  return { isNamed: false, text: `no record names ${hypervisor}` }
}

function isSyntaxError(reply: unknown): boolean {
  return reply instanceof Error && reply.message.startsWith(SYNTAX_ERROR)
}

/** True if Redis refuses every write, whatever the rights of the user. */
function refusesWrites(reply: unknown): boolean {
  return reply instanceof Error && /^(OOM|MISCONF|READONLY) /.test(reply.message)
}

function problemsOf(replies: readonly unknown[]): Advice[] {
  return withoutRepeats(replies.filter((reply) => reply instanceof Error).map(adviceOf))
}

function withoutRepeats(all: readonly Advice[]): Advice[] {
  return [...new Map(all.map((one) => [one.text, one])).values()]
}
