import { readFileSync } from 'node:fs'
import { PassThrough } from 'node:stream'
import { expect, test } from 'vitest'
import { parse } from 'yaml'
import { CONDITIONS } from '../../../src/imdsd/conditions/table.ts'
import { explainCode, MEANINGS, suggestCode } from '../../../src/imdsctl/explain-code.ts'
import { Output } from '../../../src/runtime/output.ts'

const ALERTS = new URL('../../../deploy/alerts.yml', import.meta.url)

/** What explaining a code prints; undefined: there is none. */
function explained(code: string, json = false): string | undefined {
  const [out, err] = [new PassThrough(), new PassThrough()]
  const output = new Output('imdsctl', out, err, () => undefined)
  output.use({ json, continues: true })
  return explainCode(output, code) ? String(out.read()) : undefined
}

test('a code is explained with what it means, what guests notice, and what to do', () => {
  expect(explained('store-lost')).toMatch(/^store-lost +the daemon is not .*\.\nguests +known .*\.\ndo +repair .*\n$/)
  const { code, what, guests, remedy } = CONDITIONS.find((row) => row.code === 'store-lost')!
  expect(JSON.parse(explained('store-lost', true)!)).toEqual({ formatVersion: 1, code, what, guests, remedy })
})

test('codes of imds-api, events, reasons of refusals and all alerts are explained', () => {
  for (const code of ['pool-full', 'journal-torn', 'requests-shed', 'log-lines-lost', 'over-share'])
    expect(explained(code)).toMatch(new RegExp(`^${code} `))
  const { groups } = parse(readFileSync(ALERTS, 'utf8')) as { groups: readonly { rules: { alert: string }[] }[] }
  const alerts = groups.flatMap(({ rules }) => rules).map(({ alert }) => alert)
  expect(alerts).toContain('ImdsDown')
  expect(alerts.filter((alert) => !MEANINGS.has(alert))).toEqual([])
})

test('a text that is no code is not explained; a similar code is suggested', () => {
  for (const text of ['store', 'srv-x1y2z', '', 'help', '--help', '10.0.0.2'])
    expect([explained(text), suggestCode(text)]).toEqual([undefined, ''])
  expect(suggestCode('stor-lost')).toBe('(Did you mean store-lost?)')
  expect(suggestCode('ImdsDwn')).toBe('(Did you mean ImdsDown?)')
})

test('a code is of one or more words, and its texts are sentences', () => {
  for (const { code, what, guests, remedy } of MEANINGS.values()) {
    expect(code).toMatch(/^([a-z][a-z0-9]*(-[a-z]+)*|Imds\w+)$/)
    expect([what, guests]).toEqual([expect.stringMatching(/\.$/), expect.stringMatching(/\.$/)])
    expect(remedy).not.toMatch(/\.$/)
  }
})
