/**
 * Decides whether the responses on a connection may be, whatever was sent on it. test/contract/ and
 * test/imdsd/smuggling.test.ts have which response each request gets.
 */
import { MARK, type Input } from './inputs.ts'
import { foreignCanaries, type FuzzGuest, type Role } from './guests.ts'
import type { Sent } from './send.ts'
import { readAnswers } from './wire.ts'

/** The statuses that each kind of peer may get. A peer that is not served gets the same status to everything. */
const STATUSES: Readonly<Record<Role, readonly number[]>> = {
  known: [200, 304, 400, 401, 403, 404, 405, 503],
  required: [200, 304, 400, 401, 403, 405, 503],
  disabled: [403],
  unknown: [503],
}

/** Checks the responses on one connection. `wrong` describes what is wrong; it is absent if nothing is. */
export function checkAnswers(
  { bytes, leading }: Input,
  { role, canary }: FuzzGuest,
  { text, plan, stuck, broken }: Sent,
): { readonly wrong?: string; readonly statuses: readonly number[] } {
  const { answers, wrong, cut = false } = readAnswers(text, bytes.includes('HEAD'))
  const statuses = answers.map(({ status }) => status)
  const foreign = foreignCanaries(text, role === 'known' ? canary : '')
  const isServed = role === 'known' && plan.cutAt === undefined && !broken && !statuses.includes(503) // it has a share
  const faults = [
    stuck && 'the connection did not end',
    !(cut && broken) && wrong,
    foreign.length > 0 && `data of another instance: ${foreign.join(', ')}`,
    text.includes(MARK) && 'a response contains text of the request',
    statuses.some((status) => !STATUSES[role].includes(status)) && `statuses ${statuses.join()} to a guest: ${role}`,
    isServed &&
      (statuses.length < leading || statuses.slice(0, leading).some((status) => status !== 200)) &&
      `the statuses ${statuses.join()} after ${leading} valid requests`,
  ].filter((fault) => typeof fault === 'string')
  return { statuses, ...(faults.length > 0 && { wrong: faults.join('; ') }) }
}
