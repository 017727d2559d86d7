/**
 * The floor of imdsctl's import and export: the same files and the same bytes in Redis, by pipelines, without a check,
 * an index or a notice.
 *
 *   node test/bench/bare-store.ts import|export DIRECTORY PORT
 */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Redis } from 'ioredis'

/** As many as imdsctl has in flight. */
const BATCH = 32
const PREFIX = 'bare:'

const [verb, directory = '', port] = process.argv.slice(2)
const redis = new Redis({ host: '127.0.0.1', port: Number(port) })
await (verb === 'import' ? importAll() : exportAll())
redis.disconnect()

async function importAll(): Promise<void> {
  const ids = readdirSync(directory)
    .filter((name) => name.endsWith('.json'))
    .map((name) => name.slice(0, -'.json'.length))
  for (let at = 0; at < ids.length; at += BATCH) {
    const pipeline = redis.pipeline()
    for (const id of ids.slice(at, at + BATCH)) {
      const [record, userData] = ['.json', '.user-data'].map((ending) => readFileSync(join(directory, id + ending)))
      pipeline.hset(PREFIX + id, 'record', record!, 'user-data', userData!)
    }
    await pipeline.exec()
  }
}

async function exportAll(): Promise<void> {
  mkdirSync(directory)
  const ids = (await redis.keys(`${PREFIX}*`)).map((key) => key.slice(PREFIX.length))
  for (let at = 0; at < ids.length; at += BATCH) {
    const batch = ids.slice(at, at + BATCH)
    const values = await Promise.all(batch.map((id) => redis.hmgetBuffer(PREFIX + id, 'record', 'user-data')))
    for (const [i, id] of batch.entries())
      for (const [n, ending] of ['.json', '.user-data'].entries())
        writeFileSync(join(directory, id + ending), values[i]![n]!, { mode: 0o600, flag: 'wx' })
  }
}
