/** The marks of hypervisors in Redis, and the announcement of imds-api. */
import { isName } from '../../metadata/identifiers.ts'
import { parseControlPlane, type ControlPlane, type Fleet, type StoreState } from '../fleet.ts'
import { MAX_ANNOUNCEMENT_BYTES } from './announcements.ts'
import { runPipeline } from './connection.ts'
import { ANNOUNCEMENT_SECONDS, type Keys } from './keys.ts'
import type { RegionClient } from './region-client.ts'

export class RedisFleet implements Fleet {
  readonly #client: RegionClient
  readonly #keys: Keys

  constructor(client: RegionClient, keys: Keys) {
    this.#client = client
    this.#keys = keys
  }

  async drained(): Promise<ReadonlyMap<string, string>> {
    const marks = await this.#client.run((redis) => redis.hgetall(this.#keys.drained))
    return new Map(
      Object.entries(marks)
        .filter(([name]) => isName(name))
        .sort(),
    )
  }

  async drain(name: string, since: string): Promise<boolean> {
    if ((await this.drained()).has(name)) return false
    await this.#client.run((redis) => redis.hset(this.#keys.drained, name, since))
    return true
  }

  async undrain(name: string): Promise<boolean> {
    return (await this.#client.run((redis) => redis.hdel(this.#keys.drained, name))) > 0
  }

  async forget(name: string): Promise<boolean> {
    const announced = await this.#client.run((redis) => redis.del(this.#keys.announcement(name)))
    return (await this.undrain(name)) || announced > 0
  }

  async controlPlane(): Promise<ControlPlane | undefined> {
    const text = await this.#client.run((redis) => redis.getrange(this.#keys.api, 0, MAX_ANNOUNCEMENT_BYTES - 1))
    return text === '' ? undefined : parseControlPlane(text)
  }

  async announceControlPlane(controlPlane: ControlPlane, drained: ReadonlyMap<string, string>): Promise<void> {
    await this.#client.run((redis) =>
      redis.set(this.#keys.api, JSON.stringify(controlPlane), 'EX', ANNOUNCEMENT_SECONDS),
    )
    const marks = await this.drained()
    for (const name of marks.keys()) if (!drained.has(name)) await this.undrain(name)
    for (const [name, since] of drained)
      if (marks.get(name) !== since) await this.#client.run((redis) => redis.hset(this.#keys.drained, name, since))
  }

  async database(): Promise<string | undefined> {
    const text = await this.#client.run((redis) => redis.getrange(this.#keys.database, 0, MAX_ANNOUNCEMENT_BYTES - 1))
    return text === '' ? undefined : text
  }

  async setDatabase(database: string, replaces: boolean): Promise<string> {
    await this.#client.run((redis) =>
      replaces ? redis.set(this.#keys.database, database) : redis.set(this.#keys.database, database, 'NX'),
    )
    return (await this.database()) ?? database
  }

  /** A history is Redis' replication id. A primary has a new one after a restart, and a replica once it is promoted. */
  async state(): Promise<StoreState> {
    const replies = await this.#client.run(async (redis) => {
      const found = await runPipeline(redis, [
        ['getrange', this.#keys.database, 0, MAX_ANNOUNCEMENT_BYTES - 1],
        ['getrange', this.#keys.complete, 0, MAX_ANNOUNCEMENT_BYTES - 1],
        ['info', 'replication'],
      ])
      for (const reply of found) if (reply instanceof Error) throw reply
      return found.map(String)
    })
    const [database, complete, info] = replies as [string, string, string]
    return {
      database: database === '' ? undefined : database,
      history: /^master_replid:(\w+)/m.exec(info)?.[1] ?? '',
      complete: complete === '' ? undefined : complete,
    }
  }

  async markComplete(history: string): Promise<void> {
    await this.#client.run((redis) => redis.set(this.#keys.complete, history))
  }
}
