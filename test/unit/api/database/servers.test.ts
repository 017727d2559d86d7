import { expect, test } from 'vitest'
import type { SessionAttributes } from '../../../../src/api/database/server-url.ts'
import { Servers, type ServerState } from '../../../../src/api/database/servers.ts'

const PRIMARY: ServerState = { cluster: '1', timeline: 1, isStandby: false, isReadOnly: false }
const STANDBY: ServerState = { cluster: '1', timeline: 0, isStandby: true, isReadOnly: true }

/** Servers in these states; one without a state cannot be reached. */
function some(states: (ServerState | undefined)[], session: SessionAttributes = 'read-write') {
  const moves: string[] = []
  const servers = states.map((_, i) => ({ name: 'abc'[i]!, address: { host: 'abc'[i]!, port: 1 } }))
  const choosing = new Servers(
    servers,
    session,
    (server) => {
      const state = states[servers.indexOf(server)]
      return state === undefined ? Promise.reject(new Error('is away')) : Promise.resolve(state)
    },
    (message) => {
      moves.push(message)
    },
  )
  const choose = async () => {
    choosing.doubt()
    return (await choosing.choose()).name
  }
  return { choosing, servers, states, moves, choose }
}

test('the primary is chosen, wherever it is named', async () => {
  expect(await some([STANDBY, undefined, PRIMARY]).choose()).toBe('c')
})

test('the primary of the latest timeline is chosen, and a former one is refused for good', async () => {
  const { states, choose, moves } = some([PRIMARY, STANDBY])
  expect(await choose()).toBe('a')
  states[1] = { ...PRIMARY, timeline: 2 }
  expect(await choose()).toBe('b')
  expect(moves).toEqual(['the database has moved from a to b'])
  states[1] = undefined
  await expect(choose()).rejects.toThrow(
    'no server can be used: a is a former primary: its timeline is 1, and 2 was seen; b is away',
  )
})

test('of two primaries of one timeline, the one in use is kept', async () => {
  const { states, choose } = some([STANDBY, PRIMARY])
  expect(await choose()).toBe('b')
  states[0] = PRIMARY
  expect(await choose()).toBe('b')
})

test('a server of another cluster is refused, whatever its timeline is', async () => {
  const { states, choose } = some([PRIMARY, { ...PRIMARY, cluster: '2', timeline: 9 }])
  expect(await choose()).toBe('a')
  states[0] = undefined
  await expect(choose()).rejects.toThrow('b is another database cluster')
})

test.each([
  ['read-write', { ...PRIMARY, isReadOnly: true }, 'is read-only'],
  ['primary', { ...PRIMARY, isReadOnly: true }, undefined],
  ['primary', STANDBY, 'is a standby'],
  ['any', STANDBY, undefined],
] as const)('%s: %o', async (session, state, fault) => {
  const { choosing } = some([state, undefined], session)
  if (fault === undefined) expect((await choosing.choose()).name).toBe('a')
  else await expect(choosing.choose()).rejects.toThrow(fault)
})

test('a connection to a server that was left meanwhile is refused, and those that it has end', async () => {
  const { choosing, servers, states, choose } = some([PRIMARY, STANDBY])
  await choose()
  const ended: string[] = []
  const connection = {
    destroy: () => {
      ended.push('a')
    },
  }
  choosing.admit(connection, servers[0]!, PRIMARY)
  expect(choosing.isAdmitted(connection)).toBe(true)
  states[1] = { ...PRIMARY, timeline: 2 }
  await choose()
  expect([ended, choosing.isAdmitted(connection)]).toEqual([['a'], false])
  expect(() => {
    choosing.admit(connection, servers[0]!, PRIMARY)
  }).toThrow('a is a former primary')
})

test('a single server is not asked what it is, unless target_session_attrs is given', () => {
  expect([some([PRIMARY], 'any').choosing.areAsked, some([PRIMARY]).choosing.areAsked]).toEqual([false, true])
})
