/** Each rule of the contract is held by a test of `npm test` that names its number. */
import { readdirSync, readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { isLong } from '../tools/long.ts'

const ROOT = new URL('../../', import.meta.url).pathname

/** The numbers with which names of tests, and rows of tables, begin: `F1: a guest ...`, or `'F1', ...` in a row. */
function citedBy(text: string): string[] {
  return [...text.matchAll(/(['"`])([A-H]\d+(?:(?:, | and | to )[A-H]\d+)*)(?:: |\1)/g)].flatMap(([, , list]) =>
    list!.split(/, | and | to /),
  )
}

test('each number of the contract is cited by a test of npm test', () => {
  const rules = [...readFileSync(`${ROOT}docs/contract.md`, 'utf8').matchAll(/^- \*\*([A-H]\d+)\*\*/gm)].map(
    ([, rule]) => rule!,
  )
  const tests = readdirSync(`${ROOT}test`, { recursive: true, encoding: 'utf8' }).filter(
    (name) => name.endsWith('.test.ts') && !isLong(`test/${name}`),
  )
  const cited = new Set(tests.flatMap((name) => citedBy(readFileSync(`${ROOT}test/${name}`, 'utf8'))))
  expect(rules.length).toBeGreaterThan(30)
  expect(rules.filter((rule) => !cited.has(rule))).toEqual([])
})
