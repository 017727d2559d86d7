import { createHash } from 'node:crypto'
import { expect, test } from 'vitest'
import { formatDocument, PAGE_HEADERS } from '../../../src/pages/document.ts'
import { markup } from '../../../src/pages/markup.ts'

const page = formatDocument({
  title: 'imds on <hv1>',
  state: 'warning',
  about: 'imdsd 1.0.0',
  sections: [['Health', markup`<p>well</p>`]],
})

test('the policy allows the style of the page by its hash, a form to the page itself, and nothing else', () => {
  const [, style] = /<style>(.*)<\/style>/s.exec(page)!
  const hash = createHash('sha256').update(style!).digest('base64')
  expect(PAGE_HEADERS['content-security-policy']).toBe(
    `default-src 'none'; style-src 'sha256-${hash}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'`,
  )
})

test('a page loads nothing, has no script and no style in an attribute, and refreshes itself', () => {
  expect(page).not.toMatch(/<script|<link|<img|@import|url\(|https?:|\sstyle=|\son\w+=/i)
  expect(page).toContain('<meta http-equiv="refresh" content="30">')
  expect(page).toContain('prefers-color-scheme:dark')
})

test('the level comes first in the title, and the title is escaped', () => {
  expect(page).toContain('<title>warning: imds on &lt;hv1&gt;</title>')
  expect(page).toContain('<h2>Health</h2>\n<p>well</p>')
})
