/** The pages below /docs in a browser: a client signs in and tries a request. */
import type { AddressInfo } from 'node:net'
import type { Browser } from 'playwright-core'
import t from 'tap'
import { startBrowser, watch } from '../support/browser.ts'
import { CLIENT_OF, ONE, secretOf } from '../support/fixtures/region.ts'
import { anApi } from '../support/programs/api.ts'
import { DocsPage } from '../support/docs-page.ts'
import { without } from '../support/packages.ts'

/** Opens a page that is watched. `dialogs`: the URLs for which the browser would ask for a user and a password. */
async function openPage(browser: Browser) {
  const page = await browser.newPage()
  page.setDefaultTimeout(90_000)
  const watched = watch(page)
  const devtools = await page.context().newCDPSession(page)
  await devtools.send('Fetch.enable', { handleAuthRequests: true })
  const asked: string[] = []
  devtools.on('Fetch.requestPaused', ({ requestId }) => void devtools.send('Fetch.continueRequest', { requestId }))
  devtools.on('Fetch.authRequired', ({ requestId, request }) => {
    asked.push(request.url)
    void devtools.send('Fetch.continueWithAuth', { requestId, authChallengeResponse: { response: 'CancelAuth' } })
  })
  return { page, watched, asked }
}

/** A document that a link to /docs may name, and that must not be loaded. */
const ELSEWHERE = 'http://127.0.0.1:9/openapi.json'
const api = await anApi(t)

t.test('/docs with a query leads to the page without one', async (t) => {
  for (const url of ['/docs?X', '/docs/?X', '/docs?url=https://example.com/&a=/'])
    t.match(await api.server.inject(url), { statusCode: 302, headers: { location: '/docs/' } }, url)
  for (const url of ['/docs', '/docs/', '/docs/json?X']) t.equal((await api.server.inject(url)).statusCode, 200, url)
})

t.test('documents that need no token have an entity tag, and are not sent again', async (t) => {
  for (const url of ['/', '/1.0', '/1.0/openapi.json', '/docs/json', '/.well-known/oauth-authorization-server']) {
    const { statusCode, headers } = await api.server.inject(url)
    t.equal(statusCode, 200, url)
    const again = await api.server.inject({ url, headers: { 'if-none-match': headers.etag! } })
    t.match(again, { statusCode: 304, body: '', headers: { etag: headers.etag } }, url)
  }
  t.equal((await api.server.inject('/docs/yaml')).statusCode, 404, 'which would be made for each request')
})

t.test('/ and /1.0 say what this is, and where its documents are', async (t) => {
  for (const url of ['/', '/1.0', '/1.0/']) {
    const response = await api.server.inject(url)
    t.equal(response.statusCode, 200, url)
    t.match(response.json(), { name: 'imds-api', documentation: /\/docs$/, openapi: /\/1\.0\/openapi\.json$/ }, url)
    for (const link of ['documentation', 'openapi'])
      t.equal(
        (await api.server.inject(new URL(response.json<Record<string, string>>()[link]!).pathname)).statusCode,
        200,
      )
  }
})

t.test('/docs in a browser', { skip: without('chromium') }, async (t) => {
  await api.server.listen({ host: '127.0.0.1', port: 0 })
  const { port } = api.server.server.address() as AddressInfo
  const browser = await startBrowser()
  t.teardown(() => browser.close())

  for (const host of ['localhost', '127.0.0.1']) {
    await t.test(`http://${host}/docs: a client signs in and creates a server from the example`, async (t) => {
      const { page, watched, asked } = await openPage(browser)
      const origin = `http://${host}:${port}`
      const shown = await page.goto(`${origin}/docs`)
      t.match(
        shown!.headers()['content-security-policy'],
        /^default-src 'none'; script-src 'self'; .*frame-ancestors 'none'$/,
      )
      t.equal(await page.title(), 'imds-api')
      const docs = new DocsPage(page)
      await docs.signIn(CLIENT_OF[ONE], 'wrong')
      t.match(await docs.signInError(), "the client's id or secret is wrong")
      t.same(asked, [], 'the browser does not ask for a password itself')
      t.match(watched.errors.splice(0), [/ 401 /])
      await docs.signIn(CLIENT_OF[ONE], secretOf(CLIENT_OF[ONE]))
      await docs.closeSignIn()
      const { status, body } = await docs.tryOut('Servers', 'createServer')
      t.equal(status, 202)
      const { id } = JSON.parse(body) as { id: string }
      const rows = api.database.db.selectFrom('servers').select('account_id').where('id', '=', id)
      t.same(await rows.execute(), [{ account_id: ONE }])
      t.same(
        watched.requests.filter((url) => !url.startsWith(`${origin}/`)),
        [],
        'nothing is loaded from elsewhere',
      )
      t.same([watched.errors, watched.dialogs], [[], []])
      await page.close()
    })
  }

  await t.test('a link to /docs with a query shows the operations, and cannot load another document', async (t) => {
    const { page, watched } = await openPage(browser)
    const origin = `http://localhost:${port}`
    await page.goto(`${origin}/docs?url=${ELSEWHERE}&configUrl=${ELSEWHERE}`, { waitUntil: 'networkidle' })
    await page.getByRole('link', { name: 'Servers', exact: true }).waitFor()
    t.same(
      watched.requests.filter((url) => !url.startsWith(`${origin}/`)),
      [],
    )
    await page.close()
  })
})
