import { expect, test } from 'vitest'
import { InstanceSchema } from '../../../src/metadata/schema.ts'

test('the schema is valid JSON Schema that can be published as it is', () => {
  const schema = JSON.parse(JSON.stringify(InstanceSchema)) as { type: string; required: string[]; properties: object }
  expect(schema.type).toBe('object')
  expect(schema.required).toContain('revision')
  expect(Object.keys(schema.properties)).toContain('userData')
})
