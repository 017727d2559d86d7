/**
 * A daemon that is killed or stops responding while systemd holds its socket.
 */
import t from 'tap'
import { bootHost, withoutSystemd } from '../support/netns/booted-host.ts'
import { until } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startLoad, summary, type Failure, type Load } from '../support/load/load.ts'

const KILLS = 20
const CLIENTS = 8
/** Requests from one kill to the next, at least. */
const BETWEEN = 200
const LOADS: readonly [string, Load][] = [
  ['a connection per request', { clients: CLIENTS, keepAlive: false }],
  ['connections that are kept', { clients: CLIENTS, keepAlive: true }],
]

t.test('G3: with imds.socket', { skip: withoutSystemd() }, async (t) => {
  const host = await bootHost(t)
  const { systemctl, show, shell, guests: [guest] } = host
  const answered = async () => (await guest!.ask({ path: '/latest/meta-data/instance-id' })).status === 200
  const restarts = async () => Number((await show('NRestarts'))['NRestarts'])
  await shell('cat > /store/srv-abcde.json', JSON.stringify(anInstance()))
  await systemctl('enable', 'imds.socket')
  await systemctl('start', 'imds.service')
  await until(answered, 'the instance')

  await t.test(`${String(KILLS)} kills refuse no connection and fail only requests in flight`, async (t) => {
    const loads = await Promise.all(LOADS.map(([, load]) => startLoad(guest!, load)))
    const kills: { from: number, to: number }[] = []
    for (let i = 1; i <= KILLS; i++) {
      await Promise.all(loads.map((load) => load.more(BETWEEN)))
      const { MainPID: pid } = await show('MainPID')
      const from = Date.now()
      await systemctl('kill', '--signal=KILL', 'imds.service')
      await until(() => shell(`test ! -e /proc/${pid!}`).then(() => true, () => false), 'its end') // its connections live as long as it does
      kills.push({ from, to: Date.now() })
      await until(async () => await restarts() === i, 'the next start')
    }
    await Promise.all(loads.map((load) => load.more(BETWEEN)))
    for (const [i, load] of loads.entries()) {
      const figures = await load.stop()
      t.comment(`${String(KILLS)} kills, ${LOADS[i]![0]}: ${summary(figures)}`)
      t.same(figures.failed.filter(({ what }) => what !== 'ECONNRESET'), [], 'what failed was cut by the kill')
      const at = ({ startedMs, endedMs }: Failure) => kills.findIndex(({ from, to }) => startedMs <= to && endedMs >= from)
      const failed = Map.groupBy(figures.failed, at)
      t.notOk(failed.has(-1), 'and was under way at it')
      t.ok([...failed.values()].every(({ length }) => length <= CLIENTS), 'once for each of those who asked')
    }
  })

  const WATCHDOG_SECONDS = 5
  const PERIODS = 3

  await t.test(`a daemon with a running event loop is left alone for ${String(PERIODS)} watchdog periods`, async (t) => {
    await host.dropIn('imds.service', `[Service]\nWatchdogSec=${String(WATCHDOG_SECONDS)}`)
    await systemctl('restart', 'imds.service')
    const { MainPID: pid } = await show('MainPID')
    const lastSign = async () => Number((await show('WatchdogTimestampMonotonic'))['WatchdogTimestampMonotonic']) / 1_000_000
    const first = await lastSign()
    await until(async () => await lastSign() >= first + PERIODS * WATCHDOG_SECONDS, 'signs of life', 30_000)
    t.match(await show('MainPID', 'NRestarts'), { MainPID: pid, NRestarts: '0' })
  })

  await t.test('a daemon with a blocked event loop is killed and restarted, and guests are served', async (t) => {
    const { MainPID: pid } = await show('MainPID')
    await shell(`kill -STOP ${pid!}`)
    const asked = answered().catch(() => answered()) // a guest whose request the blocked daemon had accepted retries
    await until(async () => await restarts() === 1, 'the next start', 30_000)
    t.not((await show('MainPID'))['MainPID'], pid)
    t.ok(await asked)
    t.ok(await answered())
    await until(async () => (await show('ActiveState'))['ActiveState'] === 'active', 'READY')
  })
})
