/** Asks the Sentinels which server is the primary. */
import { readSecretFile } from '../../runtime/setting-files.ts'
import type { Node } from '../url.ts'
import { close, dial, runPipeline, storeOf, type RedisSettings } from './connection.ts'
import { errorOf } from './reasons.ts'

/** What a Sentinel names. `epoch` grows with each failover. */
interface Primary {
  readonly node: Node
  readonly epoch: number
}

/**
 * Asks all Sentinels at once, and resolves with the primary:
 *
 * - the server that more than half of them name, as soon as they do
 * - else, when all have answered or failed, the server that most of them name
 * - of two servers with equally many votes, that of the latest failover
 *
 * A Sentinel without contact to the others may name a former primary, or one of another setup. Rejects with the reason
 * of each Sentinel if none answers.
 */
export async function askSentinels(settings: RedisSettings, sentinels: readonly Node[], name: string): Promise<Node> {
  const answers: Primary[] = []
  const failed: (readonly [Node, unknown])[] = []
  const votes = ({ node }: Primary) => answers.filter((other) => isSame(other.node, node)).length
  const { promise: enough, resolve } = Promise.withResolvers<undefined>()
  const asked = sentinels.map((sentinel) =>
    askSentinel(settings, sentinel, name).then(
      (answer) => {
        answers.push(answer)
        if (votes(answer) > sentinels.length / 2) resolve(undefined)
      },
      (error: unknown) => failed.push([sentinel, error]),
    ),
  )
  await Promise.race([enough, Promise.all(asked)])
  const [best] = answers.toSorted((a, b) => votes(b) - votes(a) || b.epoch - a.epoch)
  if (best === undefined) throw errorOf(sentinels, failed)
  return best.node
}

export async function askSentinel(settings: RedisSettings, sentinel: Node, name: string): Promise<Primary> {
  const master = storeOf(settings).master! // the shape is sentinel
  const { sentinelPasswordFile: file } = settings
  const connection = await dial(settings, sentinel, {
    connectionName: name,
    ...(file !== undefined && { password: readSecretFile(file) }),
  })
  try {
    // The epoch first: if a failover comes between the two, the answer counts as the older one.
    const [state, address] = await runPipeline(connection.redis, [
      ['sentinel', 'master', master],
      ['sentinel', 'get-master-addr-by-name', master],
    ])
    if (address === undefined) throw new Error(`this Sentinel knows no primary with the name ${master}`)
    for (const reply of [state, address]) if (reply instanceof Error) throw reply
    const [host, port] = address as [string, string]
    const fields = state as string[] // names and values in turn
    const epoch = fields.indexOf('config-epoch') + 1
    return { node: { host, port: Number(port) }, epoch: epoch === 0 ? 0 : Number(fields[epoch]) }
  } finally {
    close(connection)
  }
}

export function isSame(a: Node, b: Node): boolean {
  return a.host === b.host && a.port === b.port
}
