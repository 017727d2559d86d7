/**
 * The amount of data that the daemon reads from Redis at once, and that one turn of the event loop hashes and decrypts.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { validate } from '../../src/imdsd/view/validate.ts'
import { openStore } from '../../src/store/open.ts'
import type { Loaded } from '../../src/store/source.ts'
import { SLICE_BYTES } from '../../src/limits/turn-budget.ts'
import { mostBytesPerTurn } from '../support/fixtures/bytes-per-turn.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { aCipher, keyLines } from '../support/fixtures/record-keys.ts'
import { aSource } from '../support/redis/shapes.ts'
import { startRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'

const MIB = 1024 * 1024
const LIMIT = 16 * MIB
const id = (n: number) => `srv-n${String(n)}`

const redis = await startRedis(t)

/** Publishes the instances 1, 2 and so on, with user-data of these sizes. */
async function publish(t: Test, sizes: readonly number[], isEncrypted = false): Promise<void> {
  await redis.client.flushall()
  const keys = join(testDirectory(t), 'keys')
  writeFileSync(keys, keyLines('k1'))
  const store = await openStore({
    url: redis.url,
    region: 'gb1',
    userDataMaxBytes: LIMIT,
    recordKeysFile: isEncrypted ? keys : undefined,
  })
  for (const [i, size] of sizes.entries()) {
    const { kind } = await store.put(
      anInstance({
        id: id(i + 1),
        interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`10.0.0.${String(i + 1)}/8`] }],
      }),
      Buffer.alloc(size, id(i)),
    )
    t.equal(kind, 'published')
  }
  await store.close()
}

async function calls(command: string): Promise<number> {
  return Number(
    new RegExp(`^cmdstat_${command}:calls=(\\d+)`, 'm').exec(await redis.client.info('commandstats'))?.[1] ?? 0,
  )
}

for (const isEncrypted of [false, true]) {
  const what = isEncrypted ? 'encrypted' : 'plain'
  t.test(
    `${what} user-data of any length is read completely, and one turn handles only a small part of it`,
    async (t) => {
      const sizes = [LIMIT, 16_384, 0, 3 * MIB, ...Array.from({ length: 60 }, () => 65_536)]
      await publish(t, sizes, isEncrypted)
      const source = await aSource(t, redis.url, LIMIT, isEncrypted ? aCipher('gb1', 'k1') : undefined)
      const found: Loaded[] = []
      const { hashed, ciphered } = await mostBytesPerTurn(async () => {
        for await (const loaded of source.load(sizes.map((_size, i) => id(i + 1)))) {
          if (loaded.kind === 'record') t.match(validate(loaded, LIMIT), { ok: true })
          found.push(loaded)
        }
      })
      t.same(
        found.map((loaded) => [loaded.kind, loaded.id, 'userData' in loaded && loaded.userData?.length]),
        sizes.map((size, i) => ['record', id(i + 1), size]),
      )
      t.ok(hashed > 0 && hashed <= MIB + SLICE_BYTES, `${String(hashed)} bytes hashed`)
      t.equal(ciphered > 0, isEncrypted)
      t.ok(ciphered <= MIB + SLICE_BYTES, `${String(ciphered)} bytes decrypted`)
    },
  )
}

t.test('one read has at most 4 MiB or one instance, and the next one waits until it is consumed', async (t) => {
  await publish(t, [1.5 * MIB, 1.5 * MIB, 1.5 * MIB, 6 * MIB, 16, 16])
  const source = await aSource(t, redis.url, LIMIT)
  await redis.client.config('RESETSTAT')
  const reads: [string, number][] = []
  for await (const loaded of source.load([1, 2, 3, 4, 5, 6].map(id))) reads.push([loaded.id, await calls('hmget')])
  t.same(reads, [
    [id(1), 2],
    [id(2), 2],
    [id(3), 3],
    [id(4), 4],
    [id(5), 6],
    [id(6), 6],
  ])
})

t.test('user-data beyond the limit is a fault, and is not read if several instances are loaded', async (t) => {
  await publish(t, [8 * MIB, 16])
  const source = await aSource(t, redis.url, 16_384)
  await redis.client.config('RESETSTAT')
  const found: Loaded[] = []
  for await (const loaded of source.load([id(1), id(2)])) found.push(loaded)
  const reason = 'the user-data is 8388608 bytes, more than the limit of 16384 (IMDS_USER_DATA_MAX_BYTES)'
  t.match(found, [
    { kind: 'user-data', id: id(1), digest: /^[0-9a-f]+$/, reason },
    { kind: 'record', id: id(2) },
  ])
  t.ok(Number(/total_net_output_bytes:(\d+)/.exec(await redis.client.info('stats'))?.[1]) < MIB)
  for await (const loaded of source.load([id(1)])) t.match(loaded, { kind: 'user-data', id: id(1), reason })
})

t.test('the lengths of one instance and of several are asked before they are read', async (t) => {
  await publish(t, [16, 16])
  const source = await aSource(t, redis.url, LIMIT)
  for (const [ids, lengths] of [
    [[id(1)], 3],
    [[id(1), id(2)], 6],
  ] as const) {
    await redis.client.config('RESETSTAT')
    for await (const loaded of source.load(ids)) t.equal(loaded.kind, 'record')
    t.equal(await calls('hstrlen'), lengths)
    t.equal(await calls('hmget'), ids.length)
  }
})
