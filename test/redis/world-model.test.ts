/**
 * The model of the store in test/world has the rules of publish.lua: random calls to both get the same answers, and
 * leave the same region. IMDS_TEST_LONG=1 makes 100,000 calls.
 */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { ipv6Digits } from '../../src/metadata/address.ts'
import { sha256 } from '../../src/metadata/user-data.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import type { ScriptArguments } from '../../src/store/redis/script.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startRedis } from '../support/redis/redis.ts'
import { diceOf, type Dice } from '../fuzz/dice.ts'
import { digestOf, Region } from '../world/region.ts'

const CALLS = process.env['IMDS_TEST_LONG'] === '1' ? 100_000 : 4_000
/** How many calls are sent before the regions are compared. */
const BATCH = 50
/** After so many calls the region is emptied. Every other time its records are encrypted, which has other refusals. */
const PHASE = 400
/** The places of a phase begin in the future, so that they do not depend on the clock. */
const FIRST_PLACE_AHEAD_MS = 3_600_000
const SCRIPT = readFileSync(new URL('../../src/store/redis/publish.lua', import.meta.url), 'utf8')
const KEYS = keysOf('gb1')
const IDS = ['srv-a', 'srv-b', 'srv-c', 'srv-d', 'srv-e']
const HYPERVISORS = ['hv1', 'hv2', 'hv3']
const TIMES = ['2026-11-20T15:04:05Z', '2026-11-21T00:00:00Z']
const IPV6 = [
  ...['2a02:1348:178::2', '2a02:1348:178::3', '2a02:1348:179:1::5', 'fd00::1'],
  // the first and the last address of a prefix
  ...['2a02:1348:179:1::', '2a02:1348:179:1:ffff:ffff:ffff:ffff'],
]
const PREFIXES = ['2a02:1348:178::/48', '2a02:1348:179:1::/64', '2a02:1348:179::/48', 'fd00::/60']

function someOf<T>(dice: Dice, all: readonly T[], most: number): T[] {
  return all
    .filter(() => dice.chance(0.4))
    .slice(0, most)
    .toSorted(() => dice.below(3) - 1)
}

/** The arguments of a random call, for plain records or for encrypted ones. */
function call(dice: Dice, region: Region, isEncrypted: boolean): ScriptArguments {
  const suffix = isEncrypted ? '-encrypted' : ''
  const id = dice.pick(IDS)
  const current = (region.entries.get(id) ?? region.tombstones.get(id))?.revision ?? 1
  if (dice.chance(0.15)) {
    const revision = dice.chance(0.5) ? [String(Math.max(1, current - 1 + dice.below(3)))] : []
    const sealedAt = revision.length > 0 && dice.chance(0.3) ? [dice.pick(TIMES)] : []
    return [`remove${suffix}`, id, ...revision, ...sealedAt]
  }
  const lifts = dice.chance(0.15)
  const userData = dice.chance(0.5) ? Buffer.from(`data ${dice.below(3)}`) : undefined
  const record = anInstance({
    id,
    revision: Math.max(1, current - 1 + dice.below(4)),
    fqdn: `n${dice.below(2)}.example.com`,
    hypervisors: [dice.pick(HYPERVISORS), ...(dice.chance(0.3) ? [dice.pick(HYPERVISORS)] : [])],
    interfaces: ['int-a', 'int-b'].slice(0, 1 + dice.below(2)).map((one) => ({
      id: one,
      macAddress: '02:24:19:00:00:ee',
      network: dice.pick(['default', 'other']),
      ipv4Addresses: [`10.0.0.${1 + dice.below(6)}${dice.chance(0.5) ? '/24' : ''}`],
      ipv6Addresses: someOf(dice, IPV6, 2).map((address) => `${address}${dice.chance(0.5) ? '/64' : ''}`),
      ipv6Prefixes: someOf(dice, PREFIXES, 2),
    })),
    ...(userData !== undefined && { userData: { size: userData.length, sha256: sha256(userData) } }),
    ...(!lifts && dice.chance(0.1) && { sealedAt: dice.pick(TIMES) }),
    ...(isEncrypted && { order: region.last + dice.below(8), fromStore: dice.chance(0.3) }),
  })
  const mode = dice.chance(0.4) ? ['keep'] : userData === undefined ? ['none'] : ['set', userData]
  const verb = `${lifts ? 'unseal' : 'put'}${suffix}`
  const text = JSON.stringify(record)
  if (!isEncrypted) return [verb, text, ...mode]
  const head = `imds1 k1 ${String(record['revision'])}\n`
  const entry = region.entries.get(id)
  const digest = dice.pick(['', entry === undefined ? 'none' : digestOf(entry), 'another'])
  return [
    dice.chance(0.1) ? 'encrypt' : verb,
    text,
    Buffer.from(head + text),
    Buffer.from(userData === undefined ? '' : head + String(userData)),
    digest,
  ]
}

/** What the model has, as the keys in Redis. */
function contentsOf(region: Region): unknown {
  const ranges = [...region.entries].flatMap(([id, { claims }]) => {
    const own = claims.filter((claim) => claim.includes(':')).map((claim) => claim.split(' ') as [string, string])
    const digits = [...new Set(own.map(([network, range]) => `${network} ${ipv6Digits(range)}`))]
    return digits
      .filter((one) => !digits.some((other) => other !== one && one.startsWith(other)))
      .map((one) => `${one} ${id}`)
  })
  return {
    order: [String(region.last)],
    behind: region.behind === undefined ? [] : [String(region.behind)],
    instances: [...region.entries].map(([id, entry]) => {
      const { revision, record, userData, hypervisors, sealedAt } = entry
      const values = [String(record), userData?.toString() ?? null]
      return JSON.stringify([id, String(revision), digestOf(entry), ...values, hypervisors, sealedAt ?? null])
    }),
    tombstones: [...region.tombstones].map(([id, { revision, order, sealedAt }]) =>
      [id, revision, order, sealedAt].join(' ').trim(),
    ),
    indexes: HYPERVISORS.flatMap((name) => [...region.index(name)].map((entry) => [name, ...entry].join(' '))),
    addresses: [...region.entries].flatMap(([id, { claims }]) =>
      [...new Set(claims)].filter((claim) => !claim.includes(':')).map((claim) => `${claim} ${id}`),
    ),
    ranges,
    reports: [...region.reports].map(([key, text]) => `${key} ${String(text)}`),
  }
}

const redis = await startRedis(t)
const { client } = redis

/** What Redis has, in the same form. */
async function contentsOfRedis(): Promise<unknown> {
  const entries = Object.entries(await client.hgetall(KEYS.instances))
  const instances = await Promise.all(
    entries.map(async ([id, text]) => {
      const { revision, digest, hypervisors, sealedAt } = JSON.parse(text) as Record<string, unknown>
      const [record, userData, own] = await client.hmget(KEYS.instance(id), 'record', 'user-data', 'digest')
      if (own?.split(' ')[0] !== digest) throw new Error(`the digest of ${id} is not the one of the index`)
      return JSON.stringify([id, revision, own, record, userData, Object.values(hypervisors!), sealedAt ?? null])
    }),
  )
  const hashes = async (names: string[], keyOf: (name: string) => string) =>
    (
      await Promise.all(
        names.map(async (name) =>
          Object.entries(await client.hgetall(keyOf(name))).map((entry) => [name, ...entry].join(' ')),
        ),
      )
    ).flat()
  const strings = async (pattern: string, suffixOf: (key: string) => string) =>
    Promise.all(
      (await client.keys(pattern)).map(async (key) => `${suffixOf(key)} ${(await client.get(key)) ?? ''}`.trim()),
    )
  return {
    order: [(await client.get(KEYS.order)) ?? ''],
    behind: [await client.get(KEYS.behind)].filter((mark) => mark !== null),
    instances,
    tombstones: await strings(KEYS.tombstone('*').replace('{', '\\{'), (key) => key.slice(KEYS.tombstone('').length)),
    indexes: await hashes(HYPERVISORS, KEYS.hypervisor),
    addresses: await hashes(['default', 'other'], KEYS.addresses),
    ranges: (
      await Promise.all(
        ['default', 'other'].map(async (network) =>
          (await client.zrange(KEYS.ranges(network), '0', '-1')).map((member) => `${network} ${member}`),
        ),
      )
    ).flat(),
    reports: await strings('imds:*:reports:*', (key) => key.split(':reports:')[1]!.replace(':', ' ')),
  }
}

const sorted = (contents: unknown) =>
  Object.fromEntries(Object.entries(contents as Record<string, string[]>).map(([key, of]) => [key, of.toSorted()]))

t.test(`the model of the store answers ${CALLS} random calls as publish.lua does`, async (t) => {
  const seed = Date.now() % 1_000_000
  t.comment(`seed ${seed}`)
  const notices = client.duplicate()
  t.teardown(() => notices.disconnect())
  let heard: string[] = []
  notices.on('pmessage', (_pattern: string, channel: string, id: string) => {
    heard.push(`${channel.split(':notices:')[1]!} ${id}`)
  })
  await notices.psubscribe('imds:*')
  const sha = (await client.script('LOAD', SCRIPT)) as string
  const region = new Region()
  const verdicts = new Map<string, number>()
  let isEncrypted = false
  for (let index = 0; index < CALLS; index += BATCH) {
    const dice = diceOf(seed, index)
    if (index % PHASE === 0) {
      isEncrypted = !isEncrypted
      region.entries.clear()
      region.tombstones.clear()
      region.reports.clear()
      region.announced.clear()
      region.behind = undefined
      region.last = (Date.now() + FIRST_PLACE_AHEAD_MS) * 1_000
      await client.flushall()
      await client.set(KEYS.order, region.last)
    }
    const expected: string[] = []
    const answers: Promise<unknown>[] = []
    const modelled: unknown[] = []
    for (let n = 0; n < BATCH; n++) {
      if (dice.chance(0.2)) {
        const [name, id, text] = [dice.pick(HYPERVISORS), dice.pick(IDS), `report ${n}`]
        region.reports.set(`${name} ${id}`, Buffer.from(text))
        void client.set(KEYS.reports(name, id), text)
      }
      if (dice.chance(0.05)) {
        const name = dice.pick(HYPERVISORS)
        const order = region.last + (dice.chance(0.2) ? 48 * 3_600_000_000 : dice.below(10) - 5)
        region.announced.set(name, order)
        void client.set(KEYS.announcement(name), JSON.stringify({ order }))
      }
      if (dice.chance(0.05)) {
        region.behind = undefined
        void client.del(KEYS.behind)
      }
      const args = call(dice, region, isEncrypted)
      answers.push(client.evalsha(sha, 1, KEYS.region, ...args))
      const answer = region.run(args, Date.now(), (name, id) => expected.push(`${name} ${id}`))
      modelled.push(answer)
      const verdict = answer[0] === 'refused' ? answer.slice(0, 2).join(' ') : answer[0]
      verdicts.set(verdict, (verdicts.get(verdict) ?? 0) + 1)
    }
    const real = ((await Promise.all(answers)) as string[][]).map((answer) =>
      ['user-data', 'behind'].includes(answer[1]!) ? answer.slice(0, 2) : answer,
    )
    const isSame =
      JSON.stringify(real) === JSON.stringify(modelled) &&
      JSON.stringify(sorted(await contentsOfRedis())) === JSON.stringify(sorted(contentsOf(region)))
    await notices.ping()
    const [listened, expectedNotices] = [heard.toSorted(), expected.toSorted()]
    heard = []
    if (isSame && JSON.stringify(listened) === JSON.stringify(expectedNotices)) continue
    t.same(listened, expectedNotices, 'the notices')
    t.same(real, modelled, `the answers, index ${index}`)
    t.same(sorted(await contentsOfRedis()), sorted(contentsOf(region)), 'the region')
    t.fail(`the model differs: seed ${seed}, index ${index}`)
    return
  }
  t.comment([...verdicts].map(([verdict, count]) => `${verdict}: ${count}`).join(', '))
  for (const verdict of [
    'published',
    'unchanged',
    'removed',
    'absent',
    'refused stale',
    'refused address-owned',
    'refused user-data',
    'refused sealed',
    'refused changed',
    'refused order',
    'refused behind',
  ])
    t.ok(verdicts.get(verdict), `${verdict} occurs`)
})
