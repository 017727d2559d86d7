import { expect, test } from 'vitest'
import { onlyIds } from '../../../src/store/only-ids.ts'
import type { Loaded, Source, SourceEvents } from '../../../src/store/source.ts'

const ID = 'srv-abcde'
/** What another program may have written in place of an id. */
const NO_IDS = ['', '..', '../victim', 'a/b', '.hidden', 'a b', 'a\n', 'a\0', 'a:b', 'a'.repeat(65)]

/** A source whose index, notices and owners are written by another program. */
function aSource() {
  const asked: string[] = []
  let events: SourceEvents | undefined
  const source: Source = {
    description: 'a store',
    reports: undefined,
    stop: () => Promise.resolve(),
    start: (given) => {
      events = given
    },
    index: () => Promise.resolve({ initialised: true, digests: new Map([...NO_IDS, ID].map((id) => [id, 'digest'])) }),
    async *load(ids): AsyncIterable<Loaded> {
      asked.push(...ids)
      yield* ids.map((id) => ({ kind: 'removed', id }) as const)
      await Promise.resolve()
    },
    owner: (_network, address) => Promise.resolve(address === '10.0.0.2' ? ID : '../victim'),
  }
  return { source: onlyIds(source), asked, events: () => events }
}

test('only ids of the index, of notices and of owners are passed on', async () => {
  const { source, events } = aSource()
  const noticed: string[] = []
  source.start({
    notice: (id) => {
      noticed.push(id)
    },
    connected: () => {
      /* unused */
    },
    disconnected: () => {
      /* unused */
    },
  })
  for (const id of [...NO_IDS, ID]) events()?.notice(id)
  expect(noticed).toEqual([ID])
  expect(await source.index()).toEqual({ initialised: true, digests: new Map([[ID, 'digest']]) })
  expect([await source.owner('default', '10.0.0.2'), await source.owner('default', '10.0.0.3')]).toEqual([
    ID,
    undefined,
  ])
})

test('a store is never asked for anything but ids: the others are absent', async () => {
  const { source, asked } = aSource()
  const loaded: Loaded[] = []
  for await (const one of source.load([...NO_IDS, ID])) loaded.push(one)
  expect(loaded).toEqual([...NO_IDS.map((id) => ({ kind: 'absent', id })), { kind: 'removed', id: ID }])
  expect(asked).toEqual([ID])
})
