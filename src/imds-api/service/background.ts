/** What imds-api does without a request. */
import { CHECK_INTERVAL_MS, ConditionWatch } from '../../conditions/watch.ts'
import { VERSION } from '../../runtime/installation.ts'
import { PeriodicTask } from '../../runtime/periodic-task.ts'
import { purgeActions } from '../changes/action-queue.ts'
import { purgeKeys } from '../changes/keyed-change.ts'
import { readDrained } from '../changes/hypervisors.ts'
import { purgeServers } from '../changes/server-purge.ts'
import { EVENTS_CHANNEL, purgeEvents } from '../changes/events.ts'
import { readConditions, type ServiceStateParts } from '../conditions/table.ts'
import { buildListener } from '../database/notifications.ts'
import type { Database } from '../database/open.ts'
import { purgeEach } from '../database/purge.ts'
import { InvitationSender } from '../mail/sender.ts'
import { buildSmtp } from '../mail/smtp.ts'
import { MAX_BATCH_SERVERS, OutboxPublisher } from '../publish/outbox-publisher.ts'
import { checkRegion, openOwnRegion } from '../publish/region-database.ts'
import type { Auth } from './rest.ts'
import type { ServiceParts } from './service-parts.ts'

const [ANNOUNCEMENT_INTERVAL_MS, PURGE_INTERVAL_MS] = [60_000, 3_600_000]

/** Publishes the servers that change. */
export function buildPublisher({ database, databaseReport, storeOpener, metrics, log }: ServiceParts): OutboxPublisher {
  const { db } = database.background
  return new OutboxPublisher({
    db,
    connect: () => database.connect(),
    openStore: openOwnRegion(db, () => storeOpener.open(), log),
    batchSize: MAX_BATCH_SERVERS,
    count: metrics.countPublish,
    countBatch: metrics.countBatch,
    databaseReport,
    log,
  })
}

export function buildSender({
  config: { mail },
  database,
  databaseReport,
  metrics,
  log,
}: ServiceParts): InvitationSender {
  return new InvitationSender({
    db: database.background.db,
    count: metrics.countInvitation,
    databaseReport,
    log,
    mail: mail === undefined ? undefined : { send: buildSmtp(mail), invitationUrl: mail.invitationUrl },
  })
}

/**
 * Announces imds-api and the drained hypervisors in the store, at the start and every minute, so that imdsctl refuses
 * changes that imds-api would overwrite.
 */
export function buildAnnouncement({
  database,
  storeOpener,
  log,
}: Pick<ServiceParts, 'database' | 'storeOpener' | 'log'>): PeriodicTask {
  const { db } = database.background
  const announce = async () => {
    const { fleet } = await storeOpener.open()
    await checkRegion(db, fleet)
    await fleet.announceControlPlane({ version: VERSION, seenAt: new Date().toISOString() }, await readDrained(db))
  }
  return new PeriodicTask(announce, ANNOUNCEMENT_INTERVAL_MS, ({ message }) => {
    log.debug({ reason: message }, 'imds-api was not announced; trying again in a minute')
  })
}

/** Wakes the requests that wait, at each event. */
export function listenForEvents({
  database,
  waits,
}: Pick<ServiceParts, 'waits'> & { readonly database: Pick<Database, 'connect'> }): PeriodicTask {
  return buildListener(
    () => database.connect(),
    EVENTS_CHANNEL,
    (payload) => {
      for (const name of payload.trim().split(' ')) waits.wake(name)
    },
  )
}

/** Logs each condition when it begins and when it ends. While the database does not answer, no other one ends. */
export function buildConditionCheck(state: ServiceStateParts, log: ServiceParts['log']): PeriodicTask {
  const watch = new ConditionWatch(log, () => performance.now())
  const check = async () => {
    const { region, found } = await readConditions(state)
    watch.note(found, region !== undefined)
  }
  return new PeriodicTask(check, CHECK_INTERVAL_MS, (error) => {
    throw error // a defect: readConditions does not reject
  })
}

/** Deletes expired rows: at the start, and each hour. */
export function buildPurge({ database: { db }, databaseReport, log }: ServiceParts, auth: Auth): PeriodicTask {
  const purge = async () => {
    await purgeEach([auth.purge, ...[purgeActions, purgeKeys, purgeEvents, purgeServers].map((one) => () => one(db))])
  }
  return new PeriodicTask(purge, PURGE_INTERVAL_MS, (error) => {
    if (databaseReport.report(error)) return
    log.warn(
      { code: 'rows-not-deleted', reason: error.message },
      'expired tokens, old addresses, actions, keys, events and deleted servers were not deleted; retrying in an hour',
    )
  })
}
