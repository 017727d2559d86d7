/** What can be wrong with imdsd: its conditions, what explains the most first. */
import { HOST } from './host.ts'
import { RECORDS } from './records.ts'
import type { DaemonConditions } from './state.ts'
import { STORE } from './store.ts'

export const CONDITIONS: DaemonConditions = [...STORE, ...RECORDS, ...HOST]
