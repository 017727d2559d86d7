/** Restarts while systemd keeps the socket open (contract G3), and a guest that reads its tree without a pause. */
import t from 'tap'
import { bootHost, withoutSystemd } from '../support/netns/booted-host.ts'
import { until } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startLoad, summary, type Load } from '../support/load/load.ts'

const ID = '/latest/meta-data/instance-id'
const RESTARTS = 20
/** The least number of requests between two restarts. */
const REQUESTS_PER_STEP = 200
const LOADS: readonly [string, Load][] = [
  ['a connection per request', { clients: 8, keepAlive: false }],
  ['keep-alive connections', { clients: 8, keepAlive: true }],
]

t.test('G3: with imds.socket', { skip: withoutSystemd() }, async (t) => {
  const host = await bootHost(t)
  const {
    systemctl,
    show,
    shell,
    setEnv,
    guests: [guest],
  } = host
  const ask = async () => (await guest!.ask({ path: ID })).body.toString()
  await shell('cat > /store/srv-abcde.json', JSON.stringify(anInstance()))

  await t.test('a restart gives the socket of systemd to a daemon that listened itself', async (t) => {
    await systemctl('start', 'imds.service')
    await until(async () => (await ask()) === 'srv-abcde', 'the instance')
    await systemctl('enable', 'imds.socket')
    await systemctl('restart', 'imds.service')
    t.match(
      await show('ActiveState', 'SubState'),
      { ActiveState: 'active', SubState: 'running' },
      'the daemon reported READY',
    )
    const [listening] =
      /.*169\.254\.169\.254:80.*/.exec(await shell('ss --no-header --listening --tcp --numeric --processes')) ?? []
    t.match(listening, /"systemd",pid=1,/, 'the socket belongs to systemd')
    t.match(listening, /LISTEN +0 +4096 /, 'its backlog is that of the unit')
    t.equal(await ask(), 'srv-abcde')
    t.equal(
      (
        await guest!.ask({
          method: 'PUT',
          path: '/latest/api/token',
          headers: { 'X-aws-ec2-metadata-token-ttl-seconds': '60' },
        })
      ).status,
      200,
      'the sandbox allows the daemon to mark a connection on that socket',
    )
  })

  await t.test(`${RESTARTS} restarts fail no request`, async (t) => {
    const loads = await Promise.all(LOADS.map(([, load]) => startLoad(guest!, load)))
    for (let i = 0; i < RESTARTS; i++) {
      await Promise.all(loads.map((load) => load.more(REQUESTS_PER_STEP)))
      await systemctl('restart', 'imds.service')
    }
    for (const [i, load] of loads.entries()) {
      const figures = await load.stop()
      t.comment(`${RESTARTS} restarts, ${LOADS[i]![0]}: ${summary(figures)}`)
      t.same(figures.failed, [])
      t.same(figures.answers[ID], ['srv-abcde'])
    }
  })

  await t.test("a guest's request starts a stopped daemon and is answered", async (t) => {
    await systemctl('stop', 'imds.service')
    t.equal(await ask(), 'srv-abcde')
    await until(async () => (await show('ActiveState'))['ActiveState'] === 'active', 'READY')
  })

  await t.test('a request with bad configuration is answered once it is corrected, with no manual start', async (t) => {
    await setEnv('IMDS_STORE=nonsense')
    await t.rejects(systemctl('restart', 'imds.service'))
    const request = ask()
    await until(async () => (await shell('cat /log')).split('IMDS_STORE must be').length > 2, 'the second start')
    await setEnv('IMDS_STORE=file:/store')
    t.equal(await request, 'srv-abcde')
  })
})
