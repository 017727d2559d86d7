/** The keys of session tokens: where they come from, and what tokens survive (contract D3, D4). */
import { statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { exchange } from '../support/fixtures/socket.ts'
import { testDirectory } from '../support/test-directory.ts'

const SET_CLOCK = new URL('../support/programs/set-clock.ts', import.meta.url).href
const ID = '/latest/meta-data/instance-id'

let store: string
t.before(async () => {
  store = `file:${testDirectory(t)}`
  await (await openStore({ url: store })).put(anInstance({ interfaces: loopback() }))
})

async function aDaemon(t: Test, env: Record<string, string> = {}): Promise<TestDaemon> {
  const daemon = await startDaemon(t, { IMDS_STORE: store, ...env })
  await until(async () => (await daemon.get(ID)).status === 200, 'the instance')
  return daemon
}

async function mint(daemon: TestDaemon, ttlSeconds = 600): Promise<string> {
  return (
    await exchange(
      daemon.guestPort,
      `PUT /latest/api/token HTTP/1.0\r\nX-aws-ec2-metadata-token-ttl-seconds: ${ttlSeconds}\r\n\r\n`,
    )
  ).body
}

async function statusWith(daemon: TestDaemon, token: string): Promise<number> {
  return (await exchange(daemon.guestPort, `GET ${ID} HTTP/1.0\r\nX-aws-ec2-metadata-token: ${token}\r\n\r\n`)).status
}

t.test('D3: a session token survives a restart, because its key is saved in the state directory', async (t) => {
  const state = testDirectory(t)
  const first = await startDaemon(t, { IMDS_STORE: store, IMDS_STATE_DIR: state })
  await until(async () => (await first.get(ID)).status === 200, 'the instance')
  const token = await mint(first)
  await first.stop()
  t.equal(statSync(join(state, 'token-key')).mode & 0o777, 0o600)
  t.equal(await statusWith(await aDaemon(t, { IMDS_STATE_DIR: state }), token), 200)
})

t.test('D4: when the wall clock jumps, no token expires early and no expired one becomes valid again', async (t) => {
  const state = testDirectory(t, { clock: '0' })
  const clock = join(state, 'clock')
  const env = { IMDS_STATE_DIR: state, CLOCK_FILE: clock, NODE_OPTIONS: `--import=${SET_CLOCK}` }
  const daemon = await aDaemon(t, env)
  const [short, long] = [await mint(daemon, 1), await mint(daemon)]
  await until(async () => (await statusWith(daemon, short)) === 401, 'the short token to expire')
  for (const hours of [1, -1, 24, -24]) {
    writeFileSync(clock, String(hours * 3_600_000))
    t.same(
      [await statusWith(daemon, short), await statusWith(daemon, long), await statusWith(daemon, await mint(daemon))],
      [401, 200, 200],
      `${hours} h`,
    )
  }
  await daemon.stop()
  writeFileSync(clock, '0')
  const restarted = await aDaemon(t, env)
  t.same([await statusWith(restarted, long), await statusWith(restarted, short)], [200, 401], 'after a restart')
  await restarted.stop()
  writeFileSync(clock, '3600000')
  t.equal(await statusWith(await aDaemon(t, env), long), 401, 'after a restart with the clock an hour ahead')
})
