import type { Redis } from 'ioredis'

/**
 * Returns a function that brings the contents of a Redis back to what they are now, in place: no connection ends, and
 * its history (replication id) stays, as when the machine is reset to a snapshot.
 */
export async function rememberState(client: Redis): Promise<() => Promise<void>> {
  const saved = await Promise.all(
    (await client.keys('*')).map(async (key) => ({
      key,
      value: await client.dumpBuffer(key),
      ttlMs: Math.max(0, await client.pttl(key)),
    })),
  )
  return async () => {
    const change = client.multi().flushall()
    for (const { key, value, ttlMs } of saved) change.restore(key, ttlMs, value)
    await change.exec()
  }
}
