import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, expect, test } from 'vitest'
import { maintenance } from '../../../src/imdsctl/maintenance.ts'
import type { EventOptions } from '../../../src/metadata/event-options.ts'
import { EXIT } from '../../../src/runtime/exit-status.ts'
import { openStore } from '../../../src/store/open.ts'
import { anInstance } from '../../support/fixtures/instance.ts'
import { runCommand } from '../../support/programs/collected-output.ts'
import { temporaryDirectory } from '../../support/fixtures/temporary-directory.ts'

let directory: string
beforeEach(async () => {
  directory = temporaryDirectory()
  mkdirSync(join(directory, 'store'))
  await (await openStore({ url: url() })).put(anInstance(), Buffer.from('user-data'))
})
const url = () => `file:${join(directory, 'store')}`
const run = (options: EventOptions, id = 'srv-abcde', json = false) =>
  runCommand(async (output) => {
    await maintenance({ store: { url: url() }, output }, id, options)
    return EXIT.done
  }, json)
const published = async () => {
  const { document, userData } = (await (await openStore({ url: url() })).get('srv-abcde'))!
  return { ...(document as { revision: number; events?: unknown[] }), data: Buffer.from(userData!).toString() }
}
const REBOOT = { event: 'evt-1', code: 'system-reboot', notBefore: '2026-11-20T15:04:05Z' }

test('H8: an event is published by the next revision, and ends by the one after that', async () => {
  expect(await run(REBOOT)).toMatchObject({
    status: 0,
    stdout: 'event evt-1: published srv-abcde at revision 2\n',
  })
  const event = { id: 'evt-1', code: 'system-reboot', notBefore: REBOOT.notBefore, description: 'system-reboot' }
  expect(await published()).toMatchObject({ revision: 2, events: [{ ...event, state: 'active' }], data: 'user-data' })
  expect(await run({ complete: 'evt-1' })).toMatchObject({ status: 0 })
  expect(await published()).toMatchObject({ revision: 3, events: [{ ...event, state: 'completed' }] })
})

test('without options the events are listed, as a table and as JSON', async () => {
  await run(REBOOT)
  expect((await run({})).stdout).toMatch(
    /^EVENT +CODE +STATE .*\nevt-1 +system-reboot +active +2026-11-20T15:04:05Z +- /,
  )
  expect(JSON.parse((await run({}, 'srv-abcde', true)).stdout)).toMatchObject({
    id: 'srv-abcde',
    events: [{ id: 'evt-1', state: 'active' }],
  })
})

test('what cannot be published is refused with the reason, and changes nothing', async () => {
  for (const [options, status, reason] of [
    [{ code: 'reboot', notBefore: 'soon' }, EXIT.badData, /code must be one of .*; notBefore must be a time/],
    [{ complete: 'evt-9' }, EXIT.badData, /there is no event evt-9/],
    [{ complete: 'a', cancel: 'b' }, EXIT.usage, /one change at a time/],
  ] as const) {
    const ran = await run(options)
    expect([ran.status, ran.stderr]).toEqual([status, expect.stringMatching(reason)])
  }
  expect((await published()).revision).toBe(1)
  expect((await run(REBOOT, 'srv-none')).status).toBe(EXIT.notFound)
})

test('a region of imds-api is refused with the command to run', async () => {
  await (
    await openStore({ url: url() })
  ).fleet.announceControlPlane({ version: '1.2.3', seenAt: new Date().toISOString() }, new Map())
  expect((await run(REBOOT)).stderr).toMatch(/run imds-api maintenance srv-abcde on its host/)
})
