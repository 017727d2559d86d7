import { readFileSync } from 'node:fs'
import { PassThrough } from 'node:stream'
import { expect, test } from 'vitest'
import { LOG_CODES } from '../../../src/runtime/log-codes.ts'
import { Output } from '../../../src/runtime/output.ts'
import { explainCode, nearestCode, readSymptoms } from '../../../src/runtime/symptoms.ts'

/** What explaining a code prints. */
function explained(code: string, json: boolean): string {
  const [out, err] = [new PassThrough(), new PassThrough()]
  const output = new Output('imdsctl', out, err, () => undefined)
  output.use({ json, continues: true })
  return explainCode(output, code) ? String(out.read()) : 'unknown'
}

test('the page has one row for each code, with what it means, what guests notice, and what to do', () => {
  expect(
    readSymptoms()
      .map(({ code }) => code)
      .sort(),
  ).toEqual([...LOG_CODES])
})

test('a row is printed without links and line breaks', () => {
  const row = explained('address-contested', false)
  expect(row).toMatch(
    /^address-contested +several instances claim an address\.\nguests +.+\ndo +publish .+: ImdsContestedAddresses\.\n$/,
  )
  expect(JSON.parse(explained('store-lost', true))).toEqual({
    formatVersion: 1,
    code: 'store-lost',
    meaning: expect.stringContaining('`reason` says why') as string,
    guests: expect.stringContaining('served from memory') as string,
    remedy: expect.stringMatching(/^start Redis/) as string,
  })
})

test('a text that is no code is not explained', () => {
  for (const text of ['store', '10.0.0.2', 'srv-x1y2z', '']) expect(explained(text, false)).toBe('unknown')
})

test('each alert is explained, without links and marks, and so is each that an explanation names', () => {
  const rules = readFileSync('deploy/alerts.yml', 'utf8')
  const names = [...rules.matchAll(/- alert: (\w+)/g)].map(([, name]) => name!)
  expect(names.length).toBeGreaterThan(30)
  for (const name of names) {
    const text = explained(name, false)
    expect(text).toMatch(new RegExp(`^${name} +Severity (critical|warning|info), [^*]+\n$`))
    for (const [other] of text.matchAll(/\bImds[A-Z]\w+/g)) expect(names).toContain(other)
  }
  expect(JSON.parse(explained('ImdsStoreDisconnected', true))).toEqual({
    formatVersion: 1,
    alert: 'ImdsStoreDisconnected',
    text: expect.stringContaining('Known guests are served from memory') as string,
  })
})

test('a misspelt name is near the one that was meant', () => {
  expect(['stor-lost', 'ImdsStoreDisconected', 'srv-x1y2z'].map(nearestCode)).toEqual([
    'store-lost',
    'ImdsStoreDisconnected',
    undefined,
  ])
})
