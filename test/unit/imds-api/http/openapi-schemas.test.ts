import { expect, test } from 'vitest'
import { Components } from '../../../../src/imds-api/http/openapi-schemas.ts'

test('a schema with a title becomes a component, wherever it is', () => {
  const zone = { type: 'object', title: 'Zone', properties: { title: { type: 'string' } } }
  const components = new Components()
  expect(
    components.refer({
      type: 'array',
      items: { anyOf: [{ ...zone }, { type: 'null' }] },
      examples: [{ title: 'Zone' }],
    }),
  ).toStrictEqual({
    type: 'array',
    items: { anyOf: [{ $ref: '#/components/schemas/Zone' }, { type: 'null' }] },
    examples: [{ title: 'Zone' }],
  })
  expect(components.refer({ type: 'object', title: 'Area', properties: { zone } })).toStrictEqual({
    $ref: '#/components/schemas/Area',
  })
  expect(Object.keys(components.schemas)).toStrictEqual(['Area', 'Zone'])
  expect(components.schemas['Zone']).toStrictEqual(zone)
})

test('two schemas with the same title are refused', () => {
  const components = new Components()
  components.refer({ title: 'Zone', type: 'object' })
  expect(() => components.refer({ title: 'Zone', type: 'string' })).toThrow('two schemas have the title Zone')
})

test('keywords and formats of our own are left out, and constant texts are an enum', () => {
  expect(
    new Components().refer({
      type: 'object',
      properties: {
        port: { type: 'string', pattern: '^[0-9]+$', hint: 'a port' },
        time: { type: 'string', format: 'timestamp' },
        protocol: { anyOf: [{ const: 'tcp' }, { const: 'udp' }], description: 'Of the port.' },
        role: { enum: ['admin'] },
        value: { anyOf: [{ const: '' }, { type: 'null' }] },
      },
    }),
  ).toStrictEqual({
    type: 'object',
    properties: {
      port: { type: 'string', pattern: '^[0-9]+$' },
      time: { type: 'string', format: 'date-time' },
      protocol: { type: 'string', description: 'Of the port.', enum: ['tcp', 'udp'] },
      role: { type: 'string', enum: ['admin'] },
      value: { anyOf: [{ const: '' }, { type: 'null' }] },
    },
  })
})
