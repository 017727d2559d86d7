/**
 * The status page of the operators' listeners, in a browser and by plain requests: hostile records, the search, the
 * password, the Host header, and guests while it is loaded in a loop.
 */
import { join } from 'node:path'
import { get as getOverHttp } from 'node:http'
import t, { type Test } from 'tap'
import { openStore } from '../../src/store/open.ts'
import { background, fits, startBrowser, watch } from '../support/browser.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { request, startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { testDirectory } from '../support/test-directory.ts'
import { without } from '../support/packages.ts'

const HOSTILE = `"><img src=x onerror=alert(1)><script>alert(2)</script>`
const PASSWORD = 'a password: ü'

/** A daemon that serves 60 instances. The guest at 127.0.0.1 is srv-hostile, and sends a hostile user agent. */
async function aDaemon(t: Test, password?: string): Promise<TestDaemon> {
  const directory = testDirectory(t, { store: {}, password: password ?? '' })
  const url = `file:${join(directory, 'store')}`
  const store = await openStore({ url })
  for (let i = 1; i < 60; i++)
    await store.put(
      anInstance({
        id: `srv-${String(i).padStart(5, '0')}`,
        interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`10.0.0.${i}/24`] }],
      }),
    )
  await store.put(
    anInstance({
      id: 'srv-hostile',
      interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['127.0.0.1/8'] }],
      serverGroups: [{ id: 'grp-sda44', name: HOSTILE }],
      tags: { name: HOSTILE },
    }),
    Buffer.from('a-secret-in-user-data'),
  )
  await store.close()
  const daemon = await startDaemon(t, {
    IMDS_STORE: url,
    ...(password !== undefined && { IMDS_OPERATOR_PASSWORD_FILE: join(directory, 'password') }),
  })
  await until(async () => (await daemon.get('/latest/user-data')).status === 200, 'the instances')
  for (const path of ['/latest/meta-data/instance-id', '/latest/user-data', '/latest/nothing'])
    await asGuest(daemon, path)
  return daemon
}

function asGuest({ guestPort: port }: TestDaemon, path: string): Promise<unknown> {
  return new Promise((resolve, reject) => {
    getOverHttp({ host: '127.0.0.1', port, path, headers: { 'user-agent': HOSTILE }, agent: false }, (response) => {
      response.resume().on('end', resolve)
    }).on('error', reject)
  })
}

const daemon = await aDaemon(t)

t.test(
  'a browser shows the page, which loads and runs nothing, whatever records and guests say',
  { skip: without('chromium') },
  async (t) => {
    const url = `http://127.0.0.1:${daemon.operatorPort}/`
    const browser = await startBrowser()
    t.teardown(() => browser.close())
    const page = await browser.newPage({ colorScheme: 'light' })
    const watched = watch(page)
    const ids = () => page.locator('td[data-of=instance] a').allTextContents()

    await page.goto(url)
    t.match(await page.title(), /^(ok|warning): imds$/)
    t.equal((await ids()).length, 50)
    await page.getByRole('link', { name: 'next' }).click()
    t.same((await ids()).at(-1), 'srv-hostile')

    await page.getByRole('searchbox').fill('10.0.0.7')
    await page.getByRole('button').click()
    t.same(await ids(), ['srv-00007'])
    await page.getByRole('searchbox').fill(HOSTILE)
    await page.getByRole('button').click()
    t.same(await ids(), [])
    t.equal(await page.getByRole('searchbox').inputValue(), HOSTILE)

    await page.getByRole('link', { name: 'all', exact: true }).click()
    await page.getByRole('searchbox').fill('hostile')
    await page.getByRole('button').click()
    await page.getByRole('link', { name: 'srv-hostile' }).click()
    t.equal(await page.getByText('Requests of srv-hostile').count(), 1)
    const agents = page.locator('td[data-of="user agent"]', { hasText: HOSTILE })
    t.equal(await agents.count(), 3, 'the user agent is text')
    t.notMatch(await page.content(), /a-secret-in-user-data|AAAAC3NzaC1lZDI1NTE5/)

    t.same([watched.dialogs, watched.errors], [[], []])
    t.same(new Set(watched.requests.map((one) => one.replace(/\?.*/, ''))), new Set([url]))

    await page.evaluate(`document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="document.title = 1">');
    document.body.append(Object.assign(document.createElement('script'), { textContent: 'document.title = 2' }))`)
    t.match(await page.title(), /imds$/, 'the policy stops what would get past the escaping')
    t.match(watched.errors.join(), /inline script violates the following Content Security Policy/)
  },
)

t.test(
  'the page is light or dark as its reader prefers, and fits a phone',
  { skip: without('chromium') },
  async (t) => {
    const browser = await startBrowser()
    t.teardown(() => browser.close())
    const page = await browser.newPage({ colorScheme: 'light', viewport: { width: 360, height: 700 } })
    const watched = watch(page)
    await page.goto(`http://127.0.0.1:${daemon.operatorPort}/?q=srv-hostile`)
    t.ok(await fits(page))
    t.equal(await background(page), 'rgb(255, 255, 255)')
    await page.emulateMedia({ colorScheme: 'dark' })
    t.equal(await background(page), 'rgb(15, 19, 24)')
    t.same(watched.errors, [])
  },
)

/** The status of a GET over TCP. */
function statusOf(
  { operatorPort: port }: TestDaemon,
  path: string,
  headers: Readonly<Record<string, string>> = {},
): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    getOverHttp({ host: '127.0.0.1', port, path, headers: { ...headers }, agent: false }, (response) => {
      response.resume()
      resolve(response.statusCode)
    }).on('error', reject)
  })
}

t.test('with a password, TCP needs it for all but probes, and the unix socket does not', async (t) => {
  const daemon = await aDaemon(t, `${PASSWORD}\n`)
  const basic = (text: string) => ({ authorization: `Basic ${Buffer.from(text).toString('base64')}` })
  for (const path of ['/', '/metrics', '/instances/srv-hostile', '/explain?address=127.0.0.1']) {
    t.same([path, await statusOf(daemon, path), await statusOf(daemon, path, basic('x:wrong'))], [path, 401, 401])
    t.same([path, await statusOf(daemon, path, basic(`operator:${PASSWORD}`))], [path, 200])
  }
  for (const path of ['/livez', '/readyz']) t.same([path, await statusOf(daemon, path)], [path, 200])
  t.equal((await daemon.operator('/metrics')).status, 200)
  t.notMatch(JSON.stringify(daemon.log), PASSWORD)
})

t.test('while operators load the page in a loop, pages are bounded, and every guest is answered', async (t) => {
  let isOver = false as boolean // TypeScript does not see that the end of the guests sets it
  const loaded = { pages: 0, refused: 0 }
  const readers = Array.from({ length: 40 }, async (_, i) => {
    while (!isOver) {
      const status = await request(daemon.operatorPort, '/', `127.0.2.${i}`).then(
        (answer) => answer.status,
        () => undefined, // a connection beyond the bounds is closed
      )
      if (status === 200) loaded.pages += 1
      else loaded.refused += 1
    }
  })
  const statuses: number[] = []
  for (let i = 0; i < 100; i++) statuses.push((await daemon.get('/latest/meta-data/instance-id')).status)
  isOver = true
  await Promise.all(readers)
  t.same(new Set(statuses), new Set([200]))
  t.ok(loaded.pages > 0 && loaded.refused > 0, JSON.stringify(loaded))
})
