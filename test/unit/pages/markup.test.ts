import { expect, test } from 'vitest'
import { markup } from '../../../src/pages/markup.ts'

const HOSTILE = `</td><script>alert(1)</script>" onload='x' & \u202e\u0000`

test('a value cannot leave its text or its attribute, or change the direction of text', () => {
  const escaped = '&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot; onload=&#39;x&#39; &amp; \\u202e\\u0000'
  expect(markup`<td title="${HOSTILE}">${HOSTILE}</td>`.toString()).toBe(`<td title="${escaped}">${escaped}</td>`)
})

test('what markup has built is inserted as it is, in lists too; undefined and false are left out', () => {
  const cells = ['<a>', 7].map((value) => markup`<td>${value}</td>`)
  expect(markup`<tr>${cells}${undefined}${false}${['<', ['>']]}</tr>`.toString()).toBe(
    '<tr><td>&lt;a&gt;</td><td>7</td>&lt;&gt;</tr>',
  )
})

test('an object that only looks like markup is escaped or refused', () => {
  const forged = { toString: () => '<script>' }
  expect(() => markup`${forged as never}`.toString()).toThrow()
  expect(() => markup`${JSON.parse('{"text":"<script>"}') as never}`.toString()).toThrow()
})
