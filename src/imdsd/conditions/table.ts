/** What can be wrong with imdsd: its conditions, what explains the most first, and what the codes in its logs mean. */
import { EVENTS } from '../../conditions/events.ts'
import type { Meaning } from '../../conditions/condition.ts'
import { DAEMON_EVENTS } from './events.ts'
import { HOST } from './host.ts'
import { RECORDS } from './records.ts'
import type { DaemonConditions } from './state.ts'
import { STORE } from './store.ts'

export const CONDITIONS: DaemonConditions = [...STORE, ...RECORDS, ...HOST]
export const MEANINGS: readonly Meaning[] = [...CONDITIONS, ...DAEMON_EVENTS, ...EVENTS]
