/**
 * Reads the reports of guests for which servers wait (changes/boots.ts): `done` as the report `boot`, or
 * cloud-init's phone-home, makes a server `active`; `error`, or the end of its time limit, makes it `failed`. Each process does this, with the same result. While the store is unreachable, no
 * server fails.
 */
import type { Log } from '../../runtime/log-codes.ts'
import { PeriodicTask } from '../../runtime/periodic-task.ts'
import type { Publisher } from '../../store/publisher.ts'
import { endBoot, findBootingServers } from '../changes/boots.ts'
import type { Db } from '../database/transaction.ts'

const CHECK_INTERVAL_MS = 2_000
/** The servers whose reports are read at once: they take at most 16 KiB each, and twice that in a migration. */
const BATCH = 64
/** A field that cloud-init's phone_home sends when a guest has booted, and so a report. */
const OF_PHONE_HOME = 'instance_id'

export interface BootWatchParts {
  readonly db: Db
  readonly openStore: () => Promise<Pick<Publisher, 'reportsOf'>>
  readonly log: Log
}

/** Builds the watch, which checks every two seconds once it is started. */
export function buildBootWatch({ db, openStore, log }: BootWatchParts): PeriodicTask {
  /** When the time limits end, by the process's own clock: they stay when the clock of the database is set back. */
  let dues: ReadonlyMap<string, number> = new Map()
  const check = async (signal: AbortSignal) => {
    const store = await openStore()
    const seen = new Map<string, number>()
    for (let after = ''; !signal.aborted;) {
      const booting = await findBootingServers(db, after, BATCH)
      const reports = await store.reportsOf(booting.map(({ id }) => id))
      for (const server of booting) {
        const { id, leftMs } = server
        const due = Math.min(dues.get(id) ?? Infinity, performance.now() + leftMs)
        seen.set(id, due)
        const byName = reports.get(id)?.byName
        const boot = byName?.get('boot')?.text.trim()
        const hasBooted = boot === 'done' || byName?.has(OF_PHONE_HOME) === true
        if (!hasBooted && boot !== 'error' && due > performance.now()) continue
        await endBoot(db, server, hasBooted)
        if (!hasBooted)
          log.info(
            { server: id },
            'the server has failed: its guest has not reported that it booted, or has reported an error',
          )
      }
      if (booting.length < BATCH) break
      after = booting.at(-1)!.id
    }
    dues = seen
  }
  return new PeriodicTask(check, CHECK_INTERVAL_MS, ({ message }) => {
    log.debug({ reason: message }, 'the servers that wait for their guests were not checked; trying again')
  })
}
