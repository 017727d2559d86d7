/** The status page of imds-api in a browser: a region with hostile values, a drained hypervisor and a refused server. */
import { join } from 'node:path'
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { openStore } from '../../src/store/open.ts'
import { brokenWords, fits, startBrowser, watch } from '../support/browser.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startImdsApi, startProcess } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { must } from '../support/programs/processes.ts'
import { startRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'
import { without } from '../support/packages.ts'

const HOSTILE = `"><img src=x onerror=alert(1)><script>alert(2)</script>`
const PASSWORD = 'a password: ü'

interface Server {
  readonly id: string
  readonly status: string
  readonly interfaces: readonly { readonly ipv4_address: string }[]
}

t.test(
  'the page shows the region, whatever daemons and clients say; it needs the password',
  { skip: without('chromium') },
  async (t) => {
    const redis = await startRedis(t)
    const announcement = { version: HOSTILE, instances: 7, lagSeconds: 3, seenAt: new Date().toISOString() }
    await redis.client.set(keysOf('gb1').announcement('hv-1'), JSON.stringify(announcement))
    const files = testDirectory(t, { password: `${PASSWORD}\n` })
    const api = await startImdsApi(t, {
      IMDS_STORE: redis.url,
      IMDS_REGION: 'gb1',
      IMDS_API_OPERATOR_PASSWORD_FILE: join(files, 'password'),
    })
    await must([process.execPath, IMDS_API, 'drain', 'hv-2'], {
      env: { ...programEnvironment(), ...api.env },
    })

    const server = { image: 'img-deb12', name: 'hostile <b>', user_data: btoa('a-secret-in-user-data') }
    const create = async () => (await api.call('POST', 'servers', server)).body as Server
    const first = await create()
    const [, network, last] = /^(.*)\.(\d+)$/.exec(first.interfaces[0]!.ipv4_address)!
    const store = await openStore({ url: redis.url, region: 'gb1' })
    const next = `${network!}.${Number(last) + 1}/16`
    await store.put(
      anInstance({ interfaces: [{ id: 'int-x', macAddress: '02:24:19:ff:00:ee', ipv4Addresses: [next] }] }),
    )
    await store.close()
    const refused = await create()
    await until(() => api.log.some(({ msg }) => msg.startsWith('the store refuses the record')), 'the refusal')

    const statuses = ['/', '/conditions', '/metrics', '/livez'].map(
      async (path) => (await fetch(api.operatorUrl + path)).status,
    )
    t.same(await Promise.all(statuses), [401, 401, 401, 200])
    const browser = await startBrowser()
    t.teardown(() => browser.close())
    const context = await browser.newContext({
      viewport: { width: 360, height: 700 },
      httpCredentials: { username: 'operator', password: PASSWORD },
    })
    const page = await context.newPage()
    const watched = watch(page)
    await page.goto(api.operatorUrl)
    t.match(await page.title(), 'failure: imds-api of gb1')
    t.ok(await fits(page))
    for (const width of [720, 1280]) {
      await page.setViewportSize({ width, height: 700 })
      t.same(await brokenWords(page), [], `no word is broken at a width of ${width}`)
    }
    const rowOf = (text: string) => page.getByRole('row').filter({ hasText: text }).first()
    t.match(await rowOf('hv-1').textContent(), HOSTILE)
    t.match(await rowOf('hv-2').textContent(), /ago|min/, 'it is drained')
    t.match(await rowOf(refused.id).textContent(), 'address-owned')
    t.match(await rowOf('10.240.0.0/16').textContent(), /private ipv4.*2.*0\.0 %/s)
    await page.getByRole('searchbox').fill('HV-3')
    await page.getByRole('button').click()
    t.same(await page.locator('td[data-of=hypervisor]').allTextContents(), ['hv-3'])
    t.notMatch(await page.content(), /a-secret-in-user-data|YS1zZWNyZXQ/)
    t.same([watched.dialogs, watched.errors.filter((text) => !text.includes('401'))], [[], []])
    t.notMatch(JSON.stringify(api.log), PASSWORD)
  },
)

t.test('a password file that is empty or missing ends the start, which names the variable', async (t) => {
  const files = testDirectory(t, { empty: '' })
  const api = await startImdsApi(t)
  await api.stop()
  for (const [file, message] of [
    ['empty', 'names a file that has no password in its first line'],
    ['none', 'cannot be read: ENOENT'],
  ] as const)
    await t.rejects(startProcess(t, { ...api.env, IMDS_API_OPERATOR_PASSWORD_FILE: join(files, file) }), {
      message: new RegExp(`IMDS_API_OPERATOR_PASSWORD_FILE.*${message}`),
    })
})
