import { expect, test } from 'vitest'
import { formatSearch, hrefOf, parseQuestion, partOf, PAGE_ROWS } from '../../../src/pages/search.ts'

test.each([
  [{}, '', 1],
  [{ q: ' srv-a ', page: '3' }, 'srv-a', 3],
  [{ q: ['a', 'b'], page: ['1'] }, '', 1],
  [{ q: 'x'.repeat(1000), page: '-1' }, 'x'.repeat(100), 1],
  [{ page: '1e9' }, '', 1],
])('the query %j is a question', (query, search, page) => expect(parseQuestion(query)).toEqual({ search, page }))

test('a page has 50 rows, and a page that is too late is the last one', () => {
  const rows = Array.from({ length: PAGE_ROWS * 2 + 1 }, (_, i) => i)
  expect(partOf(rows, { search: '', page: 2 })).toEqual({ rows: rows.slice(50, 100), page: 2, pages: 3, total: 101 })
  expect(partOf(rows, { search: '', page: 9 })).toEqual({ rows: [100], page: 3, pages: 3, total: 101 })
  expect(partOf([], { search: '', page: 1 })).toEqual({ rows: [], page: 1, pages: 1, total: 0 })
})

test('the form keeps its text, the links keep the search, and a search cannot leave either', () => {
  const search = `"><script>'&q=`
  const part = partOf(Array.from({ length: PAGE_ROWS * 3 }), { search, page: 2 })
  const text = formatSearch({ search, page: 2 }, part, 'an id').toString()
  expect(text).not.toContain('<script>')
  expect(text).toContain('value="&quot;&gt;&lt;script&gt;&#39;&amp;q="')
  const links = [...text.matchAll(/href="([^"]*)"/g)].map(([, href]) => href!.replaceAll('&amp;', '&'))
  expect(links).toEqual(['?', hrefOf(search, 1), hrefOf(search, 3)])
  expect(parseQuestion(Object.fromEntries(new URLSearchParams(links[2])))).toEqual({ search, page: 3 })
})
