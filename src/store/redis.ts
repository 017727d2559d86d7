/**
 * The store in Redis, as the daemon reads it.
 *
 * Two connections: one asks, one listens to this hypervisor's channel. `connected` is said when both are there and the subscription
 * stands, so the resync that follows can miss nothing. Both are asked for a sign of life every few seconds: a peer that vanished
 * without a word (a cut network, a stopped process) would otherwise look like silence.
 */
import type { Redis } from 'ioredis'
import { connect, describeUrl, type RedisSettings } from './connection.ts'
import { keysOf } from './keys.ts'
import type { Index, Loaded, Source, SourceEvents } from './source.ts'

const HEARTBEAT_MS = 5000

/** Builds the source; nothing connects before `start`. Throws when the password file cannot be read. */
export function buildRedisSource(settings: RedisSettings, region: string, hypervisor: string): Source {
  return new RedisSource(settings, region, hypervisor)
}

class RedisSource implements Source {
  readonly description: string
  readonly #settings: RedisSettings
  readonly #keys: ReturnType<typeof keysOf>
  readonly #hypervisor: string
  #commands: Redis | undefined
  #subscriber: Redis | undefined
  #heartbeat: NodeJS.Timeout | undefined

  constructor(settings: RedisSettings, region: string, hypervisor: string) {
    this.description = describeUrl(settings.url)
    this.#settings = settings
    this.#keys = keysOf(region)
    this.#hypervisor = hypervisor
  }

  start(events: SourceEvents): void {
    const commands = this.#commands = connect(this.#settings, 'imds')
    const subscriber = this.#subscriber = connect(this.#settings, 'imds-notices')
    let lastError = 'connection closed'
    let subscribed = false
    let announced = false
    const announce = () => {
      if (announced || !subscribed || commands.status !== 'ready') return
      announced = true
      events.connected()
    }
    const lost = () => {
      announced = false
      events.disconnected(lastError)
    }
    for (const connection of [commands, subscriber]) {
      connection.on('error', (error: Error) => { lastError = error.message })
      connection.on('close', lost)
    }
    commands.on('ready', announce)
    subscriber.on('close', () => { subscribed = false })
    subscriber.on('message', (_channel: string, id: string) => { events.notice(id) })
    subscriber.on('ready', () => {
      subscriber.subscribe(this.#keys.notices(this.#hypervisor)).then(() => {
        subscribed = true
        announce()
      }, (error: unknown) => {
        lastError = String(error)
        subscriber.disconnect(true)
      })
    })
    this.#heartbeat = setInterval(() => {
      for (const connection of [commands, subscriber]) {
        if (connection.status !== 'ready') continue
        connection.ping().catch((error: unknown) => {
          lastError = String(error)
          connection.disconnect(true)
        })
      }
    }, HEARTBEAT_MS)
  }

  async index(): Promise<Index> {
    const [region, digests] = await this.#run([['get', this.#keys.region], ['hgetall', this.#keys.hypervisor(this.#hypervisor)]])
    return { initialised: region !== null, digests: new Map(Object.entries(digests as Record<string, string>)) }
  }

  async load(ids: readonly string[]): Promise<readonly Loaded[]> {
    const replies = await this.#run(ids.flatMap((id) => [
      ['hmgetBuffer', this.#keys.instance(id), 'record', 'user-data', 'digest'],
      ['get', this.#keys.tombstone(id)],
    ]))
    return ids.map((id, i) => loaded(id, replies[2 * i] as (Buffer | null)[], replies[2 * i + 1] as string | null))
  }

  async owner(network: string, address: string): Promise<string | null> {
    const [id] = await this.#run([['hget', this.#keys.addresses(network), address]])
    return id as string | null
  }

  async stop(): Promise<void> {
    clearInterval(this.#heartbeat)
    for (const connection of [this.#commands, this.#subscriber]) {
      connection?.removeAllListeners()
      connection?.on('error', () => { /* stopping */ })
      connection?.disconnect()
    }
    await Promise.resolve()
  }

  async #run(commands: (string | number)[][]): Promise<unknown[]> {
    if (this.#commands === undefined) throw new Error('not started')
    const replies = await this.#commands.pipeline(commands).exec()
    if (replies === null) throw new Error('the connection was closed')
    return replies.map(([error, reply]) => {
      if (error !== null) throw error
      return reply
    })
  }
}

function loaded(id: string, [record, userData, digest]: (Buffer | null)[], tombstone: string | null): Loaded {
  if (record == null) return { kind: tombstone === null ? 'absent' : 'removed', id }
  const common = { id, digest: digest?.toString() ?? '' }
  try {
    return { kind: 'record', ...common, document: JSON.parse(record.toString()) as unknown, userData: userData ?? null }
  } catch {
    return { kind: 'unreadable', ...common, reason: 'the record is not JSON' }
  }
}
