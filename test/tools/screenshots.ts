/**
 * Makes the screenshots of the documents: `node test/tools/screenshots.ts`. The status page is formatted from made-up
 * hypervisors, so that the image shows an hour of requests; /docs is that of an imds-api.
 */
import type { AddressInfo } from 'node:net'
import type { Browser, Page } from 'playwright-core'
import type { Test } from 'tap'
import { buildHistory, INTERVAL_MS } from '../../src/imdsd/operator/page/history.ts'
import type { Readiness } from '../../src/imdsd/operator/documents.ts'
import { formatPage } from '../../src/imdsd/operator/page/page.ts'
import { startBrowser } from '../support/browser.ts'
import { DocsPage } from '../support/docs-page.ts'
import { aGuestServer } from '../support/fixtures/guest-server.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { READY } from '../support/fixtures/look.ts'
import { CLIENT_OF, ONE, secretOf } from '../support/fixtures/region.ts'
import { anApi } from '../support/programs/api.ts'
import { ROOT } from './documents.ts'

const WIDTH = 900
const NOW = Date.parse('2026-11-23T12:00:00Z')

const browser = await startBrowser()
const statusPage = await openPage(browser, 1200)
await statusPage.setContent(await hypervisorPage())
await save(statusPage, 'status-page')
await save(await docsPage(await openPage(browser, 1100)), 'api-docs')
await browser.close()
process.exit() // the guest server keeps timers

/** The status page of a hypervisor with 60 instances, after an hour. */
async function hypervisorPage(): Promise<string> {
  const guest = aGuestServer()
  const { view, requests, meter, clock, put, ask } = guest
  const now = () => clock.ms
  const history = buildHistory(meter, now)
  for (let sample = 0; sample < 120; sample++) {
    for (let i = 0; i < 600 + 500 * Math.sin(sample / 9) + 130 * (sample % 5); i++)
      meter.countResponse(
        '/{version}/meta-data',
        'GET',
        'served',
        0.00006 * (1 + (i % 9)) + (i % 150 === 0 ? 0.002 : 0),
      )
    for (let i = 0; i < sample % 7; i++)
      meter.countResponse('unknown', 'GET', i < 2 ? 'forwarded' : 'unknown-peer', 0.0001)
    clock.ms += INTERVAL_MS
    if (sample % 2 === 0) await boot(sample / 2)
    history.sample()
  }
  const conditions: Readiness['conditions'] = [
    {
      code: 'record-faulty',
      severity: 'warning',
      text: 'records that cannot be used, and whose last good state is served (2): srv-a: /fqdn must be a domain name; ...',
      remedy: 'publish a corrected record: as for record-not-served',
    },
  ]
  const readiness = () => ({
    ...READY,
    conditions,
    instances: view.size,
    store: 'rediss://redis.example.com',
    faulty: 2,
  })
  return formatPage(
    {
      hypervisor: 'hv1',
      startedMs: -86_400_000,
      networks: ['default'],
      readiness,
      history,
      view,
      requests,
      now,
      wall: () => NOW,
    },
    { search: '', page: 1 },
  )

  async function boot(i: number): Promise<void> {
    const address = `10.0.0.${i + 2}`
    put(
      anInstance({
        id: `srv-${(i * 48_271 + 7_654_321).toString(36).padStart(5, '0').slice(-5)}`,
        revision: 1 + (i % 4),
        interfaces: [
          { id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`${address}/24`] },
          ...(i % 3 === 0
            ? [
                {
                  id: 'int-b',
                  network: 'blue',
                  macAddress: '02:24:19:00:00:ef',
                  ipv6Addresses: [`fd00::${i + 1}/64`],
                },
              ]
            : []),
        ],
      }),
    )
    clock.ms += 900
    for (const url of ['/latest/meta-data/instance-id', '/latest/meta-data/public-keys/', '/latest/user-data'])
      await ask({ url, from: address })
  }
}

/** /docs with the response to a request that was tried. */
async function docsPage(page: Page): Promise<Page> {
  const stop: (() => unknown)[] = []
  const api = await anApi({ teardown: (stopped: () => unknown) => stop.unshift(stopped) } as unknown as Test)
  await api.server.listen({ host: '127.0.0.1', port: 8170 })
  await page.goto(`http://localhost:${(api.server.server.address() as AddressInfo).port}/docs`)
  const docs = new DocsPage(page)
  await docs.signIn(CLIENT_OF[ONE], secretOf(CLIENT_OF[ONE]))
  await docs.closeSignIn()
  await docs.tryOut('Servers', 'createServer')
  for (const stopped of stop) await stopped()
  return page
}

async function openPage(from: Browser, height: number): Promise<Page> {
  return from.newPage({ viewport: { width: WIDTH, height }, colorScheme: 'light' })
}

/** Saves the part of a page that is seen as docs/NAME.png. */
async function save(page: Page, name: string): Promise<void> {
  await page.screenshot({ path: `${ROOT}docs/${name}.png` })
}
