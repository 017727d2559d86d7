/**
 * The commands as far as they need no store and no daemon. test/redis/ and test/imdsd/files.test.ts run them as a
 * program.
 */
import { PassThrough } from 'node:stream'
import { describe, expect, test } from 'vitest'
import { get, jsonOf, type Context } from '../../../src/imdsctl/commands.ts'
import { changeSeals, encrypt, remove } from '../../../src/imdsctl/change.ts'
import { type CommandFailure, EXIT } from '../../../src/runtime/exit-status.ts'
import { checkId, refusalOf } from '../../../src/imdsctl/failure.ts'
import { Output } from '../../../src/runtime/output.ts'

/** A store that cannot be opened: its URL is of no kind. */
const CONTEXT: Context = {
  store: { url: 'mysql://r' },
  output: new Output('imdsctl', new PassThrough(), new PassThrough(), () => undefined),
}

const failureOf = (work: Promise<unknown>) =>
  work.then(
    () => undefined,
    (error: unknown) => error as CommandFailure,
  )

test('text that is not an id is wrong usage, and the message has the rule', () => {
  expect(() => {
    checkId('srv a')
  }).toThrow('"srv a" is not an id: 1 to 64 letters, digits, ".", "_" or "-", beginning with a letter or digit')
  expect(() => checkId('srv-a')).not.toThrow()
})

describe('a command rejects text that is not an id before it opens the store', () => {
  test.each<[string, () => Promise<unknown>]>([
    ['remove', () => remove(CONTEXT, ['../srv-a'], { revision: 7 })],
    ['seal', () => changeSeals('seal')(CONTEXT, ['srv-a', ''], {})],
    ['unseal', () => changeSeals('unseal')(CONTEXT, ['srv a'], {})],
    ['encrypt', () => encrypt(CONTEXT, ['srv-a', 'srv/b'], {})],
  ])('%s', async (_name, command) => expect((await failureOf(command()))?.status).toBe(EXIT.usage))
})

test('if the store cannot be opened, every command fails with the reason', async () => {
  expect((await failureOf(get(CONTEXT, 'srv-a')))?.message).toMatch(/^url \(--store, IMDS_STORE\) must be/)
})

test('a conflict names the address, its network and its owner, and the remedy', () => {
  const conflict = { kind: 'address-owned', address: 'fd00::/64', network: 'red', owner: 'srv-b' } as const
  expect(refusalOf('srv-a', conflict, {}).message).toBe(
    'srv-a: fd00::/64 on network red belongs to srv-b, all or in part: remove it from that instance first',
  )
})

test('an outcome as JSON has its kind as `result`', () => {
  expect(jsonOf({ kind: 'stale', revision: 7 } as { kind: string })).toEqual({ result: 'stale', revision: 7 })
})
