import { expect, test } from 'vitest'
import { buildPeerLookup } from '../../../../src/imdsd/view/peer-lookup.ts'
import type { FoundInstance } from '../../../../src/imdsd/view/view.ts'

/** A lookup whose answers of the store the test gives. */
function aPeerLookup() {
  const state = {
    nowMs: 0,
    canAsk: true,
    found: { kind: 'unknown' } as FoundInstance,
    lookUps: [] as string[],
    results: [] as string[],
  }
  const pending: PromiseWithResolvers<undefined>[] = []
  const peerLookup = buildPeerLookup({
    find: () => state.found,
    lookUp: async (network, address) => {
      state.lookUps.push(`${network} ${address}`)
      const answer = Promise.withResolvers<undefined>()
      pending.push(answer)
      await answer.promise
    },
    canAsk: () => state.canAsk,
    lookups: {
      inc: ({ result }) => state.results.push(result),
    },
    now: () => state.nowMs,
  })
  const settle = (error?: Error) => {
    for (const answer of pending.splice(0)) {
      if (error === undefined) answer.resolve(undefined)
      else answer.reject(error)
    }
  }
  return { state, peerLookup, settle }
}

test('E2: many requests for one address cause one lookup, and another a second after its answer', async () => {
  const { state, peerLookup, settle } = aPeerLookup()
  const lookups = [peerLookup('default', '10.0.0.2'), peerLookup('default', '10.0.0.2')]
  const onOtherNetwork = peerLookup('other', '10.0.0.2')
  expect(state.lookUps).toEqual(['default 10.0.0.2', 'other 10.0.0.2'])
  state.found = { kind: 'contested' }
  settle()
  expect(await Promise.all([...lookups, onOtherNetwork])).toEqual([
    { kind: 'contested' },
    { kind: 'contested' },
    { kind: 'contested' },
  ])
  state.nowMs = 999
  expect(peerLookup('default', '10.0.0.2')).toBeUndefined()
  state.nowMs = 1_000
  expect(peerLookup('default', '10.0.0.2')).toBeDefined()
  expect([state.lookUps.length, state.results]).toEqual([3, ['found', 'found', 'skipped']])
})

test('E2: the store gets at most 100 lookups at once, and 100 a second from then on', () => {
  const { state, peerLookup } = aPeerLookup()
  let n = 0
  const asked = () => {
    const before = state.lookUps.length
    for (let i = 0; i < 300; i++) peerLookup('default', `10.0.${n >> 8}.${n++ & 255}`)
    return state.lookUps.length - before
  }
  expect(asked()).toBe(100)
  state.nowMs = 500
  expect(asked()).toBe(50)
  state.nowMs = 60_000
  expect(asked()).toBe(100)
})

test('E2: without the store nothing is looked up; a failed lookup is answered from the view', async () => {
  const { state, peerLookup, settle } = aPeerLookup()
  state.canAsk = false
  expect(peerLookup('default', '10.0.0.2')).toBeUndefined()
  state.canAsk = true
  const lookup = peerLookup('default', '10.0.0.2')
  settle(new Error('away'))
  expect([await lookup, state.results]).toEqual([{ kind: 'unknown' }, ['skipped', 'failed']])
  expect(peerLookup('default', '10.0.0.2')).toBeUndefined()
})
