/** The dashboards for Grafana in deploy/grafana/: each query gets data of running programs from a real Prometheus. */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { aRegion } from '../support/fixtures/region.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { request, startDaemon, until } from '../support/programs/daemon.ts'
import { startPrometheus } from '../support/programs/prometheus.ts'
import { freePort, startRedis } from '../support/redis/redis.ts'

interface Panel {
  readonly id: number
  readonly type: string
  readonly title: string
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number }
  readonly targets?: readonly { readonly expr: string }[]
}
interface Dashboard {
  readonly uid: string
  readonly templating: { readonly list: readonly { readonly query: string | { readonly query: string } }[] }
  readonly panels: readonly Panel[]
}

const dashboard = (name: string) =>
  JSON.parse(readFileSync(new URL(`../../deploy/grafana/${name}.json`, import.meta.url), 'utf8')) as Dashboard
const FLEET = dashboard('imds')
const API = dashboard('imds-api')
const SERVER = { image: 'img-deb12', zone: 'gb1-b' } // hv-3 is the only hypervisor of gb1-b
const skip =
  spawnSync('prometheus', ['--version']).error !== undefined &&
  'prometheus is missing: Debian has it in the package prometheus'

t.test('the panels of the dashboards have ids of their own, and do not overlap', (t) => {
  for (const { uid, panels } of [FLEET, API]) {
    t.equal(new Set(panels.map(({ id }) => id)).size, panels.length, uid)
    const cells = panels.flatMap(({ title, gridPos: { x, y, w, h } }) => {
      t.ok(x + w <= 24, `${uid}: ${title} fits into the 24 columns`)
      return Array.from({ length: w * h }, (_, i) => `${x + (i % w)},${y + Math.floor(i / w)}`)
    })
    t.equal(new Set(cells).size, cells.length, uid)
  }
  t.end()
})

t.test('a click on a hypervisor or on the other dashboard opens a dashboard that exists', (t) => {
  const links = [FLEET, API].flatMap((board) => [...JSON.stringify(board).matchAll(/"url":"\/d\/([^?"]*)/g)])
  t.equal(links.length, 3)
  for (const { 1: uid = '' } of links) t.ok([FLEET.uid, API.uid].includes(uid), uid)
  t.end()
})

t.test(
  'each query of the dashboards gets data from a Prometheus that scrapes programs under load',
  { skip },
  async (t) => {
    const redis = await startRedis(t)
    const region = aRegion({ address_pools: { ...aRegion().address_pools, private_ipv4: ['127.0.3.2-127.0.3.9'] } })
    const api = await startImdsApi(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1' }, region)
    const daemon = await startDaemon(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv-3' })
    const { body } = await api.call('POST', 'servers', SERVER)
    const KEYS = keysOf('gb1')
    await redis.client.hset(KEYS.instance('srv-faulty'), { record: '{', digest: 'x' }) // a condition
    await redis.client.hset(KEYS.hypervisor('hv-3'), 'srv-faulty', 'x')
    await redis.client.publish(KEYS.notices('hv-3'), 'srv-faulty')
    const { interfaces } = body as { readonly interfaces: readonly [{ readonly ipv4_address: string }] }
    repeat(t, async () => {
      for (const path of ['/latest/meta-data/', '/latest/user-data']) {
        await request(daemon.guestPort, path, interfaces[0].ipv4_address)
        await request(daemon.guestPort, path, '127.0.4.4') // an unknown peer
      }
      await api.call('GET', 'servers')
      await api.call('GET', 'servers/srv-nnnnn')
    })
    const instances = { imds: `127.0.0.1:${daemon.operatorPort}`, 'imds-api': new URL(api.operatorUrl).host }
    const isDown = `127.0.0.1:${await freePort()}` // for the panels of alerts
    const prometheus = await startPrometheus(t, {
      imds: [instances.imds, isDown],
      'imds-api': [instances['imds-api'], isDown],
    })

    for (const [board, job] of [
      [FLEET, 'imds'],
      [API, 'imds-api'],
    ] as const) {
      const [, variable] = board.templating.list.map(({ query }) => (typeof query === 'string' ? query : query.query))
      const [, series, label] = /^label_values\((.*), (\w+)\)$/.exec(variable!)!
      await until(
        async () => (await prometheus.labelValues(label!, series!)).join() === [instances[job], isDown].sort().join(),
        `the choices of ${board.uid}`,
      )
      for (const { title, targets = [] } of board.panels)
        for (const { expr } of targets) {
          const query = expr.replaceAll('$instance', instances[job]).replaceAll('$__rate_interval', '10s')
          await until(
            async () => (await prometheus.query(query)).some(({ value: [, value] }) => value !== 'NaN'),
            `data of "${title}" in ${board.uid}: ${query}`,
          )
          t.pass(`${title}: ${expr}`)
        }
    }
  },
)

/** Repeats an action, a few times a second, until the test ends. */
function repeat(t: Test, action: () => Promise<void>): void {
  let isRunning = true as boolean // TypeScript does not see that the teardown changes it
  const running = (async () => {
    while (isRunning) {
      await action()
      await sleep(100)
    }
  })()
  t.teardown(() => {
    isRunning = false
    return running
  })
}
