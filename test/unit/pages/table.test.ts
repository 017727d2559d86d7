import { expect, test } from 'vitest'
import { formatFacts, formatTable, number } from '../../../src/pages/table.ts'

test('a cell has the name of its column, for a phone, and is escaped', () => {
  const table = formatTable(['id', number('requests')], [['<b>', 7]], 'none').toString()
  expect(table).toContain('<tr><th>id</th><th class="number">requests</th></tr>')
  expect(table).toContain('<td data-of="id">&lt;b&gt;</td><td class="number" data-of="requests">7</td>')
})

test('a table without rows is a sentence', () => {
  expect(formatTable(['id'], [], 'No instance.').toString()).toBe('<p class="soft">No instance.</p>')
})

test('facts have their names', () => {
  expect(formatFacts([['store', '<x>']]).toString()).toBe('<dl><div><dt>store</dt><dd>&lt;x&gt;</dd></div></dl>')
})
