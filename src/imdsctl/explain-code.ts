/** `imdsctl explain CODE`: what a code of a log or of a check, a reason of refusals, or an alert means. */
import { Command, CommanderError } from 'commander'
import { ALERTS } from '../conditions/alerts.ts'
import type { Meaning } from '../conditions/condition.ts'
import { EVENTS } from '../conditions/events.ts'
import { API_EVENTS } from '../imds-api/conditions/events.ts'
import { API_CONDITIONS } from '../imds-api/conditions/table.ts'
import { DAEMON_EVENTS } from '../imdsd/conditions/events.ts'
import { CONDITIONS } from '../imdsd/conditions/table.ts'
import { REFUSALS, statusOf } from '../imdsd/guest/refusals.ts'
import type { Output } from '../runtime/output.ts'

const ROWS: readonly Meaning[] = [
  ...CONDITIONS,
  ...API_CONDITIONS,
  ...DAEMON_EVENTS,
  ...API_EVENTS,
  ...EVENTS,
  ...ALERTS,
  ...REFUSALS.map((code) => ({
    code,
    what: 'a reason for which the daemon refuses requests of guests.',
    guests: `status ${statusOf(code)}.`,
    remedy: 'docs/guests.md#statuses says when; imdsctl explain ID lists the requests of a guest',
  })),
]
/** Every name that a log line, a page or an alert prints. */
export const MEANINGS: ReadonlyMap<string, Meaning> = new Map(ROWS.map((row) => [row.code, row]))

/** Prints what a code means. False: there is none of this name. */
export function explainCode(output: Output, code: string): boolean {
  const row = MEANINGS.get(code)
  if (row === undefined) return false
  const { what, guests, remedy } = row
  if (output.json) output.printJson({ code, what, guests, remedy })
  else
    output.rows([
      [code, what],
      ['guests', guests],
      ['do', remedy],
    ])
  return true
}

/** `(Did you mean store-lost?)`, which commander finds as for its commands; empty: no code is similar. */
export function suggestCode(text: string): string {
  const program = new Command()
    .exitOverride()
    .helpCommand(false)
    .configureOutput({ writeErr: () => undefined })
  for (const code of MEANINGS.keys()) program.command(code)
  try {
    program.parse(['--', text], { from: 'user' })
  } catch (error) {
    if (error instanceof CommanderError) return /\(.*\)$/.exec(error.message)?.[0] ?? ''
    throw error
  }
  return ''
}
