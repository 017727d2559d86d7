import { EventEmitter } from 'node:events'
import { expect, test } from 'vitest'
import { MAX_PER_ADDRESS, buildAdmission, type OperatorConnection } from '../../../../src/imdsd/operator/connections.ts'

/** Connections that a test opens; `open()` are the addresses of those that were not closed, the oldest first. */
function aListener(most = 64, isAllowed: (address: string) => boolean = () => true) {
  const lines: unknown[] = []
  let nowMs = 0
  const admit = buildAdmission({
    isAllowed,
    maxConnections: most,
    now: () => nowMs,
    log: {
      warn: (facts: unknown) => lines.push(facts),
    },
  })
  const all: { address: string | undefined; end: () => void; state: 'open' | 'closed' | 'reset' }[] = []
  const connect = (remoteAddress: string | undefined) => {
    const events = new EventEmitter()
    const one: (typeof all)[number] = {
      address: remoteAddress,
      state: 'open',
      end: () => events.emit('close'),
    }
    all.push(one)
    const socket = Object.assign(events, {
      remoteAddress,
      resetAndDestroy: () => {
        one.state = 'reset'
      },
      destroy: () => {
        one.state = 'closed'
      },
    })
    admit(socket as unknown as OperatorConnection)
    return one
  }
  return {
    connect,
    lines,
    open: () => all.filter(({ state }) => state === 'open').map(({ address }) => address),
    advance: (ms: number) => {
      nowMs += ms
    },
  }
}

test('beyond the bound of an address its oldest connection is closed; other addresses keep theirs', () => {
  const { connect, open } = aListener()
  const other = connect('10.0.0.2')
  const [first, ...rest] = Array.from({ length: MAX_PER_ADDRESS }, () => connect('10.0.0.1'))
  expect(first!.state).toBe('open')
  const last = connect('10.0.0.1')
  expect([other.state, first!.state, rest[0]!.state, last.state]).toEqual(['open', 'closed', 'open', 'open'])
  for (let i = 0; i < 1_000; i++) connect('10.0.0.1')
  expect(open().length).toBe(MAX_PER_ADDRESS + 1)
  expect(other.state).toBe('open')
})

test('beyond the bound of the listener the address with the most connections loses its oldest one', () => {
  const { connect, open } = aListener(10)
  const prometheus = connect('10.0.0.1')
  const many = Array.from({ length: 9 }, () => connect('10.0.0.2'))
  connect('10.0.0.3')
  expect([prometheus.state, many[0]!.state, many[1]!.state]).toEqual(['open', 'closed', 'open'])
  for (let i = 0; i < 1_000; i++) connect(`10.0.1.${i}`)
  expect(open()).toHaveLength(10)
})

test('a connection that ends makes room', () => {
  const { connect } = aListener(2)
  const [first, second] = [connect('10.0.0.1'), connect('10.0.0.2')]
  first.end()
  connect('10.0.0.3')
  expect(second.state).toBe('open')
})

test('an address that is not allowed is reset; one line a minute says so, with the number of connections', () => {
  const { connect, lines, open, advance } = aListener(64, (address) => address === '10.0.0.1')
  for (let i = 0; i < 400; i++) expect(connect('10.0.0.2').state).toBe('reset')
  expect(connect(undefined).state).toBe('reset') // its peer has reset it
  expect(connect('10.0.0.1').state).toBe('open')
  expect([open(), lines]).toEqual([
    ['10.0.0.1'],
    [{ code: 'operator-not-allowed', address: '10.0.0.2', connections: 1 }],
  ])
  advance(60_000)
  connect('10.0.0.3')
  expect(lines.at(-1)).toEqual({ code: 'operator-not-allowed', address: '10.0.0.3', connections: 400 })
})
