/** The marks of hypervisors in Redis, and the announcement of imds-api. */
import { isName } from '../../metadata/identifiers.ts'
import { parseControlPlane, type Fleet } from '../fleet.ts'
import { formatBehind, parseBehind, placeOf } from '../order.ts'
import { MAX_ANNOUNCEMENT_BYTES } from './announcements.ts'
import { runPipeline } from './connection.ts'
import { ANNOUNCEMENT_SECONDS, type Keys } from './keys.ts'
import type { RegionClient } from './region-client.ts'

/** A text of Redis; undefined if it is empty, as that of a missing key is. */
const present = (text: string) => (text === '' ? undefined : text)

export function buildRedisFleet(client: RegionClient, keys: Keys): Fleet {
  const read = async (key: string) =>
    present(await client.run((redis) => redis.getrange(key, 0, MAX_ANNOUNCEMENT_BYTES - 1)))
  const mark = (name: string, since: string) => client.run((redis) => redis.hset(keys.drained, name, since))
  const undrain = async (name: string) => (await client.run((redis) => redis.hdel(keys.drained, name))) > 0
  const drained = async (): Promise<ReadonlyMap<string, string>> => {
    const marks = await client.run((redis) => redis.hgetall(keys.drained))
    return new Map(
      Object.entries(marks)
        .filter(([name]) => isName(name))
        .sort(),
    )
  }
  return {
    drained,
    drain: async (name, since) => {
      if ((await drained()).has(name)) return false
      await mark(name, since)
      return true
    },
    undrain,
    forget: async (name) => {
      const announced = await client.run((redis) => redis.del(keys.announcement(name)))
      return (await undrain(name)) || announced > 0
    },
    controlPlane: async () => {
      const text = await read(keys.api)
      return text === undefined ? undefined : parseControlPlane(text)
    },
    announceControlPlane: async (controlPlane, wanted) => {
      await client.run((redis) => redis.set(keys.api, JSON.stringify(controlPlane), 'EX', ANNOUNCEMENT_SECONDS))
      const marks = await drained()
      for (const name of marks.keys()) if (!wanted.has(name)) await undrain(name)
      for (const [name, since] of wanted) if (marks.get(name) !== since) await mark(name, since)
    },
    database: () => read(keys.database),
    setDatabase: async (database, replaces) => {
      await client.run((redis) =>
        replaces ? redis.set(keys.database, database) : redis.set(keys.database, database, 'NX'),
      )
      return (await read(keys.database)) ?? database
    },
    /**
     * A history is Redis' replication id. A primary has a new one after a restart, and a replica once it is promoted.
     */
    state: async () => {
      const replies = await client.run(async (redis) => {
        const found = await runPipeline(redis, [
          ['getrange', keys.database, 0, MAX_ANNOUNCEMENT_BYTES - 1],
          ['getrange', keys.complete, 0, MAX_ANNOUNCEMENT_BYTES - 1],
          ['info', 'replication'],
          ['getrange', keys.order, 0, MAX_ANNOUNCEMENT_BYTES - 1],
          ['getrange', keys.behind, 0, MAX_ANNOUNCEMENT_BYTES - 1],
          ['exists', keys.behind],
        ])
        for (const reply of found) if (reply instanceof Error) throw reply
        return found.map(String)
      })
      const [database, complete, info, last, behind, isMarked] = replies as [
        string,
        string,
        string,
        string,
        string,
        string,
      ]
      return {
        database: present(database),
        history: /^master_replid:(\w+)/m.exec(info)?.[1] ?? '',
        complete: present(complete),
        last: placeOf(last),
        behind: isMarked === '1' ? parseBehind(behind) : undefined,
      }
    },
    numbers: async () => {
      const texts = await client.run((redis) => redis.hgetall(keys.numbers))
      return new Map(Object.entries(texts).map(([name, text]) => [name, placeOf(text)]))
    },
    noteNumbers: async (numbers) => {
      if (numbers.size > 0) await client.run((redis) => redis.hset(keys.numbers, Object.fromEntries(numbers)))
    },
    markComplete: async (history) => {
      await client.run((redis) => redis.set(keys.complete, history))
    },
    markBehind: async (order) => {
      if (order > parseBehind((await read(keys.behind)) ?? '').order)
        await client.run((redis) => redis.set(keys.behind, formatBehind(order)))
    },
    clearBehind: async ({ text }) => {
      if (parseBehind((await read(keys.behind)) ?? '').text === text)
        await client.run((redis) => redis.del(keys.behind))
    },
  }
}
