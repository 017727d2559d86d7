import { createHash } from 'node:crypto'
import { expect, test } from 'vitest'
import { EVENT_FUNCTIONS } from '../../../../src/imds-api/database/event-triggers.ts'
import { MIGRATIONS } from '../../../../src/imds-api/database/migrate.ts'

test('the triggers change only together with a migration, which brings them to existing databases', () => {
  const digest = createHash('sha256').update(JSON.stringify(EVENT_FUNCTIONS)).digest('hex').slice(0, 16)
  expect({ [Object.keys(MIGRATIONS).at(-1)!]: digest }).toEqual({ '0013-fewer-tables': 'bdabea44065fb768' })
})
