/** The compute interface in the process of a test. */
import { pino } from 'pino'
import type { Test } from 'tap'
import { buildComputeServer } from '../../../src/imds-api/compute/server.ts'
import { DatabaseReport } from '../../../src/imds-api/http/database-errors.ts'
import { Waiters } from '../../../src/limits/waiters.ts'
import type { TestApi } from './api.ts'

type Parts = Parameters<typeof buildComputeServer>[0]

const LOG = pino({ level: 'silent' })
const nothing = () => undefined

/** Builds the compute interface of an API, which hypervisors use without certificates. It stops with the test. */
export function aComputeServer(
  t: Test,
  { database, accounts }: TestApi,
  parts: Partial<Parts> = {},
): ReturnType<typeof buildComputeServer> {
  const server = buildComputeServer(
    {
      ...{ db: database.db, accounts, waiters: new Waiters(), retrySeconds: 60, pollMs: 60_000 },
      ...{ count: nothing, onUnreadable: nothing, onShed: nothing, audit: nothing },
      databaseReport: new DatabaseReport(LOG),
      log: LOG,
      ...parts,
    },
    undefined,
  )
  t.teardown(() => server.close())
  return server
}
