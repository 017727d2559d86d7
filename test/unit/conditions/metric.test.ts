import { Registry } from 'prom-client'
import { expect, test } from 'vitest'
import { declareConditions } from '../../../src/conditions/metric.ts'

test('each row of the table is a series, which is 1 while its condition is found', async () => {
  const registry = new Registry()
  let found = true
  const [one, other] = [
    { code: 'store-lost', severity: 'failure' },
    { code: 'clock', severity: 'warning' },
  ] as const
  declareConditions(registry, [one, other], () => (found ? [{ ...one, text: '', remedy: '' }] : []))
  const series = async () => (await registry.metrics()).split('\n').filter((line) => line.startsWith('imds_condition{'))
  expect(await series()).toEqual([
    'imds_condition{code="store-lost",severity="failure"} 1',
    'imds_condition{code="clock",severity="warning"} 0',
  ])
  found = false
  expect((await series()).every((line) => line.endsWith(' 0'))).toBe(true)
})
