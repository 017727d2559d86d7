/** A daemon that is killed or stops responding while systemd keeps its socket open (contract G3). */
import t from 'tap'
import { bootHost, withoutSystemd } from '../support/netns/booted-host.ts'
import { until } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startLoad, summary, type Failure, type Load } from '../support/load/load.ts'

const KILLS = 20
const CLIENTS = 8
/** The least number of requests between two kills. */
const REQUESTS_PER_STEP = 200
const LOADS: readonly [string, Load][] = [
  ['a connection per request', { clients: CLIENTS, keepAlive: false }],
  ['keep-alive connections', { clients: CLIENTS, keepAlive: true }],
]

t.test('G3: with imds.socket', { skip: withoutSystemd() }, async (t) => {
  const host = await bootHost(t)
  const {
    systemctl,
    show,
    shell,
    guests: [guest],
  } = host
  const answered = async () => (await guest!.ask({ path: '/latest/meta-data/instance-id' })).status === 200
  const restarts = async () => Number((await show('NRestarts'))['NRestarts'])
  await shell('cat > /store/srv-abcde.json', JSON.stringify(anInstance()))
  await systemctl('enable', 'imds.socket')
  await systemctl('start', 'imds.service')
  await until(answered, 'the instance')

  await t.test(`${KILLS} kills refuse no connection and fail only requests in flight`, async (t) => {
    const loads = await Promise.all(LOADS.map(([, load]) => startLoad(guest!, load)))
    const kills: { from: number; to: number }[] = []
    for (let i = 1; i <= KILLS; i++) {
      await Promise.all(loads.map((load) => load.more(REQUESTS_PER_STEP)))
      const { MainPID: pid } = await show('MainPID')
      const from = Date.now()
      await systemctl('kill', '--signal=KILL', 'imds.service')
      await until(
        () =>
          shell(`test ! -e /proc/${pid!}`).then(
            () => true,
            () => false,
          ),
        'the end of the process',
      ) // its connections end with it
      kills.push({ from, to: Date.now() })
      await until(async () => (await restarts()) === i, 'the next start')
    }
    await Promise.all(loads.map((load) => load.more(REQUESTS_PER_STEP)))
    for (const [i, load] of loads.entries()) {
      const figures = await load.stop()
      t.comment(`${KILLS} kills, ${LOADS[i]![0]}: ${summary(figures)}`)
      t.same(
        figures.failed.filter(({ what }) => what !== 'ECONNRESET'),
        [],
        'requests fail only because the connection is reset',
      )
      const at = ({ startedMs, endedMs }: Failure) =>
        kills.findIndex(({ from, to }) => startedMs <= to && endedMs >= from)
      const failed = Map.groupBy(figures.failed, at)
      t.notOk(failed.has(-1), 'every failed request was in flight during a kill')
      t.ok(
        [...failed.values()].every(({ length }) => length <= CLIENTS),
        'a kill fails at most one request of each client',
      )
    }
  })

  const WATCHDOG_SECONDS = 5
  const PERIODS = 3

  await t.test(`the watchdog does not restart a daemon with a running event loop for ${PERIODS} periods`, async (t) => {
    await host.dropIn('imds.service', `[Service]\nWatchdogSec=${WATCHDOG_SECONDS}`)
    await systemctl('restart', 'imds.service')
    const { MainPID: pid } = await show('MainPID')
    const lastKeepAlive = async () =>
      Number((await show('WatchdogTimestampMonotonic'))['WatchdogTimestampMonotonic']) / 1_000_000
    const first = await lastKeepAlive()
    await until(
      async () => (await lastKeepAlive()) >= first + PERIODS * WATCHDOG_SECONDS,
      'the keep-alive messages of the watchdog',
      30_000,
    )
    t.match(await show('MainPID', 'NRestarts'), { MainPID: pid, NRestarts: '0' })
  })

  await t.test('the watchdog restarts a daemon with a blocked event loop, and guests are served', async (t) => {
    const { MainPID: pid } = await show('MainPID')
    await shell(`kill -STOP ${pid!}`)
    // a guest whose connection the blocked daemon had accepted retries
    const request = answered().catch(() => answered())
    await until(async () => (await restarts()) === 1, 'the next start', 30_000)
    t.not((await show('MainPID'))['MainPID'], pid)
    t.ok(await request)
    t.ok(await answered())
    await until(async () => (await show('ActiveState'))['ActiveState'] === 'active', 'READY')
  })
})
