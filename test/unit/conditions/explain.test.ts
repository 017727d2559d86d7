import { PassThrough } from 'node:stream'
import { expect, test } from 'vitest'
import { explainCode } from '../../../src/conditions/explain.ts'
import { Output } from '../../../src/runtime/output.ts'

const TABLE = [{ code: 'store-lost', what: 'it is lost.', guests: 'nothing.', remedy: 'start Redis' }]

/** What explaining a code prints; undefined: there is none. */
function explained(code: string, json: boolean): string | undefined {
  const [out, err] = [new PassThrough(), new PassThrough()]
  const output = new Output('imdsctl', out, err, () => undefined)
  output.use({ json, continues: true })
  return explainCode(output, TABLE, code) ? String(out.read()) : undefined
}

test('a code is explained with what it means, what guests notice, and what to do', () => {
  expect(explained('store-lost', false)).toMatch(/^store-lost +it is lost\.\nguests +nothing\.\ndo +start Redis\n$/)
  expect(JSON.parse(explained('store-lost', true)!)).toEqual({ formatVersion: 1, ...TABLE[0] })
})

test('a text that is no code is not explained', () => {
  expect(['store', 'srv-x1y2z', ''].map((text) => explained(text, false))).toEqual([undefined, undefined, undefined])
})
