import { expect, test } from 'vitest'
import { addGuide } from '../../../../src/imds-api/http/guide.ts'
import { aBareServer } from '../../../support/fixtures/bare-server.ts'

const FIRST = '/docs/guide/api.md'

function aServer() {
  const server = aBareServer()
  addGuide(server, 'https://api.gb1.example.com')
  return server
}

test('every page and image that is reachable from api.md answers, with the anchors that links name', async () => {
  const server = aServer()
  const anchors = new Map<string, readonly string[]>()
  const links: (readonly [path: string, anchor: string])[] = [[FIRST, '']]
  for (const [path] of links) {
    if (anchors.has(path)) continue
    const { statusCode, headers, body } = await server.inject(path)
    expect([path, statusCode]).toEqual([path, 200])
    const isPage = headers['content-type'] === 'text/html; charset=utf-8'
    anchors.set(path, isPage ? [...body.matchAll(/<h\d id="([^"]+)"/g)].map(([, id]) => id!) : [])
    if (!isPage) continue
    for (const [, target] of body.matchAll(/(?:href|src)="(?!https?:|mailto:)([^"]+)"/g)) {
      const { pathname, hash } = new URL(target!, `http://x${path}`)
      if (pathname === '/docs/static/favicon-32x32.png') continue
      expect(pathname).toMatch(/^\/docs\/guide\/(operations\/)?[\w.-]+$/)
      links.push([pathname, hash.slice(1)])
    }
  }
  expect(anchors.size).toBeGreaterThan(20)
  expect(links.filter(([path, anchor]) => anchor !== '' && !anchors.get(path)!.includes(anchor))).toEqual([])
})

test('a page has its title, tables and code, and its policy allows only its style and images', async () => {
  const { body, headers } = await aServer().inject(FIRST)
  expect(body).toContain('<title>The API - imds</title>')
  expect(body).toContain('<h2 id="authentication">Authentication</h2>')
  expect(body).toContain('<td><code>out_of_range</code></td>')
  expect(body).toContain('<pre><code class="language-sh">imds-api apply region.yaml\n')
  expect(headers['content-security-policy']).toMatch(
    /^default-src 'none'; style-src 'sha256-[^']+'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'$/,
  )
})

test("the examples have the region's own URL", async () => {
  const { body } = await aServer().inject(FIRST)
  expect(body).toContain('https://api.gb1.example.com/1.0/servers')
  expect(body).not.toContain('127.0.0.1:8170')
})

test('only documents are served: other names are 404', async () => {
  const server = aServer()
  for (const name of ['', 'nothing.md', '..%2fpackage.json', '%2e%2e%2fREADME.md', 'api.md%00'])
    expect([name, (await server.inject(`/docs/guide/${name}`)).statusCode]).toEqual([name, 404])
})
