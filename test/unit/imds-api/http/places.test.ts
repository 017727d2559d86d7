import { expect, test } from 'vitest'
import { Places } from '../../../../src/imds-api/http/places.ts'
import { refuse } from '../../../../src/imds-api/model/refusal.ts'

const BEYOND = refuse('too_many_requests', 'too many')

/** Three places of an account, two of each client. */
function somePlaces() {
  const ends: string[] = []
  const places = new Places<object, string>({
    ofAccount: 3,
    ofClient: 2,
    beyond: BEYOND,
    onEnd: (reason) => ends.push(reason),
  })
  return { ends, places, take: (accountId: string, requesterId: string) => places.take({ accountId, requesterId }, {}) }
}

test('an account and each of its clients have a number of places; other accounts have theirs', () => {
  const { places, take } = somePlaces()
  take('one', 'a')
  take('one', 'a')
  expect(() => take('one', 'a')).toThrow(BEYOND)
  take('one', 'b')
  expect(() => take('one', 'b')).toThrow(BEYOND)
  take('two', 'a')
  expect([places.ofAccount.size, places.ofAccount.owners, places.ofAccount.countOf('one')]).toEqual([
    4,
    ['one', 'two'],
    3,
  ])
})

test('a place that is left is free again, and counted with its reason', () => {
  const { ends, places, take } = somePlaces()
  const leave = [take('one', 'a'), take('one', 'a'), take('one', 'b')]
  leave[1]!('client')
  take('one', 'c')
  expect([ends, places.ofAccount.size]).toEqual([['client'], 3])
})

test('once the process stops, there are no places', () => {
  const { places, take } = somePlaces()
  places.close()
  expect(() => take('one', 'a')).toThrow('this process stops')
})
