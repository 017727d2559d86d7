/**
 * The options of `imdsctl maintenance` and `imds-api maintenance`, and the change of a record's events that they ask
 * for.
 */
import { randomBytes } from 'node:crypto'
import type { Parsed } from './parsed.ts'

/** `schedule`: adds an event, or replaces the one with its id. `end`: that event is over. */
export type EventChange =
  | { readonly kind: 'schedule'; readonly event: Readonly<Record<string, unknown>> }
  | { readonly kind: 'end'; readonly id: string; readonly state: 'completed' | 'canceled' }

/** The options of `imdsctl maintenance` and `imds-api maintenance`: flags and help. */
export const EVENT_OPTIONS: readonly (readonly [flags: string, help: string])[] = [
  ['--code <code>', 'announce maintenance: what happens, such as system-reboot'],
  ['--not-before <time>', 'its earliest start, such as 2026-11-20T15:04:05Z'],
  ['--not-after <time>', 'its latest end'],
  ['--description <text>', 'what the guest should know (default: the code)'],
  ['--event <id>', 'the id of the event, to change one (default: a new one)'],
  ['--complete <id>', 'end an event: it is over, and becomes history'],
  ['--cancel <id>', 'end an event: it will not happen'],
]

/** The values of EVENT_OPTIONS, by commander's names. */
export interface EventOptions {
  readonly code?: string
  readonly notBefore?: string
  readonly notAfter?: string
  readonly description?: string
  readonly event?: string
  readonly complete?: string
  readonly cancel?: string
}

/** The change that options ask for; undefined: none, the events are to be listed. */
export function parseEventOptions(options: EventOptions): Parsed<EventChange | undefined, string> {
  const { complete, cancel, event: id, ...rest } = options
  const isScheduled = id !== undefined || Object.values<string | undefined>(rest).some((value) => value !== undefined)
  const kinds = [complete, cancel].filter((value) => value !== undefined).length + Number(isScheduled)
  if (kinds > 1) return { ok: false, faults: ['--complete and --cancel stand alone: one change at a time'] }
  if (complete !== undefined) return { ok: true, value: { kind: 'end', id: complete, state: 'completed' } }
  if (cancel !== undefined) return { ok: true, value: { kind: 'end', id: cancel, state: 'canceled' } }
  if (!isScheduled) return { ok: true, value: undefined }
  const event = { id: id ?? `evt-${randomBytes(5).toString('hex')}`, description: rest.code, ...rest }
  const given = Object.fromEntries(Object.entries<string | undefined>(event).filter(([, value]) => value !== undefined))
  return { ok: true, value: { kind: 'schedule', event: given } }
}
