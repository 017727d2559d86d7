import type { FastifyRequest } from 'fastify'
import { Socket } from 'node:net'
import { setImmediate } from 'node:timers/promises'
import { expect, test } from 'vitest'
import { Waits, WAITS_OF_ACCOUNT, WAITS_OF_CLIENT } from '../../../../../src/imds-api/resources/kit/waits.ts'

/** Begins requests of a client that wait for the server `name`. */
function begin(waits: Waits, count: number, account: string, client: string, name: string) {
  return Array.from({ length: count }, () => {
    const request = {
      caller: { id: client },
      raw: { socket: new Socket() },
      share: { leave: () => undefined, again: () => Promise.resolve(() => undefined) },
      accounts: { one: account, check: () => Promise.resolve() },
    }
    return waits.until(request as unknown as FastifyRequest, { name, seconds: 60 }, () =>
      Promise.resolve(isReady.has(name) ? name : undefined),
    )
  })
}
const isReady = new Set<string>()

test('an account and each of its clients have a number of waits, and others wait beside them', async () => {
  const waits = new Waits(60_000)
  const tooMany = { name: 'too_many_requests', options: { retrySeconds: 1 } }
  const many = begin(waits, WAITS_OF_CLIENT, 'acc-one', 'cli-one', 'srv-one')
  await expect(begin(waits, 1, 'acc-one', 'cli-one', 'srv-one')[0]).rejects.toMatchObject(tooMany)
  many.push(...begin(waits, WAITS_OF_ACCOUNT - WAITS_OF_CLIENT, 'acc-one', 'cli-two', 'srv-one'))
  await expect(begin(waits, 1, 'acc-one', 'usr-one', 'srv-one')[0]).rejects.toMatchObject(tooMany)
  const [other] = begin(waits, 1, 'acc-two', 'cli-three', 'srv-two')
  expect(waits.count).toBe(WAITS_OF_ACCOUNT + 1)
  await setImmediate() // all have read once
  isReady.add('srv-one').add('srv-two')
  waits.wake('srv-one')
  expect(new Set(await Promise.all(many))).toEqual(new Set(['srv-one']))
  expect(waits.count).toBe(1)
  waits.wake('srv-two')
  expect(await other).toBe('srv-two')
  const again = begin(waits, WAITS_OF_CLIENT, 'acc-one', 'cli-one', 'srv-one')
  expect(await Promise.all(again)).toHaveLength(WAITS_OF_CLIENT)
})
