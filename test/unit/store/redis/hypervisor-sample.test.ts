import { expect, test } from 'vitest'
import { sampleHypervisors } from '../../../../src/store/redis/hypervisor-sample.ts'

const KEY = 'imds:{gb1}:instances'
const entry = (...hypervisors: string[]) => JSON.stringify({ revision: '1', digest: 'd', addresses: {}, hypervisors })

/** An index in Redis that answers the three commands, and what it was asked. */
function anIndex(entries: Readonly<Record<string, string>>) {
  const asked: (string | number)[][] = []
  const ask = (commands: (string | number)[][]) => {
    asked.push(...commands)
    return Promise.resolve(
      commands.map(([name, , ...ids]): unknown => {
        if (name === 'hrandfield') return Object.keys(entries).slice(0, ids[0] as number)
        return name === 'hstrlen' ? (entries[ids[0]!]?.length ?? 0) : ids.map((id) => entries[id])
      }),
    )
  }
  return { ask, asked }
}

test('a sample has the hypervisors of up to 16 entries, and none of long or malformed ones', async () => {
  const long = entry('hv9').padEnd(4097)
  const { ask, asked } = anIndex({
    a: entry('hv2', 'hv1'),
    b: long,
    c: 'no JSON',
    d: 'null',
    e: entry('hv8').padEnd(4096),
  })
  expect(await sampleHypervisors(ask, KEY)).toEqual(['hv1', 'hv2', 'hv8'])
  expect(asked.at(0)).toEqual(['hrandfield', KEY, 16])
  expect(asked.at(-1)).toEqual(['hmget', KEY, 'a', 'c', 'd', 'e'])
})

test('a region without records is told from one whose records cannot be sampled', async () => {
  expect(await sampleHypervisors(anIndex({}).ask, KEY)).toEqual([])
  expect(await sampleHypervisors(anIndex({ a: 'x'.repeat(5000) }).ask, KEY)).toBe(undefined)
  expect(await sampleHypervisors(anIndex({ a: '{}' }).ask, KEY)).toBe(undefined)
  for (const refused of ['hrandfield', 'hstrlen', 'hmget']) {
    const { ask } = anIndex({ a: entry('hv1') })
    const orRefused = async (commands: (string | number)[][]) =>
      commands[0]?.[0] === refused ? commands.map(() => new Error('NOPERM')) : await ask(commands)
    expect(await sampleHypervisors(orRefused, KEY), refused).toBe(undefined)
  }
})
