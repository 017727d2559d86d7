import Value from 'typebox/value'
import { describe, expect, test } from 'vitest'
import { ExplanationSchema, InstanceStateSchema, ReadinessSchema } from '../../../../src/imdsd/operator/documents.ts'
import { READINESS } from '../../../support/fixtures/ready.ts'

const STATE = { id: 'srv-a', revision: 7 }
const EXPLANATION = { network: 'default', address: '10.0.0.2', answer: 'no-listener', because: "it is srv-a's" }

test.each([
  ['readiness', ReadinessSchema, READINESS],
  ['the state of an instance', InstanceStateSchema, STATE],
  ['an explanation', ExplanationSchema, EXPLANATION],
] as const)('%s needs each of its fields, and may have those of a newer daemon', (_what, schema, document) => {
  expect(Value.Check(schema, { ...document, later: 1 })).toBe(true)
  for (const name of Object.keys(document))
    expect([name, Value.Check(schema, { ...document, [name]: undefined })]).toEqual([name, false])
})

describe('the state of an instance', () => {
  test('has no revision if nothing is served, and `final` is true or absent', () => {
    expect(
      [
        { ...STATE, revision: null },
        { ...STATE, reason: 'x', final: true },
      ].map((state) => Value.Check(InstanceStateSchema, state)),
    ).toEqual([true, true])
    expect(
      [
        { ...STATE, revision: '7' },
        { ...STATE, revision: 7.5 },
        { ...STATE, final: false },
      ].map((state) => Value.Check(InstanceStateSchema, state)),
    ).toEqual([false, false, false])
  })
})

test('the optional parts of an explanation are complete', () => {
  const instance = { id: 'srv-a', revision: 7, hypervisors: ['hv1'] }
  expect(
    Value.Check(ExplanationSchema, {
      ...EXPLANATION,
      instance,
      sessionTokens: 'required',
      hopLimit: { limit: 1, enforced: true },
    }),
  ).toBe(true)
  for (const bad of [
    { instance: { ...instance, hypervisors: undefined } },
    { sessionTokens: 'maybe' },
    { hopLimit: { limit: 1 } },
  ])
    expect(Value.Check(ExplanationSchema, { ...EXPLANATION, ...bad })).toBe(false)
})
