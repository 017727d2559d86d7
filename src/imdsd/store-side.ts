/** The store's side of imdsd: what it reads, how it announces itself, and the reports of guests that it writes. */
import type { Logger } from 'pino'
import { formatHostPort, isReachable, type HostPort } from '../runtime/host-port.ts'
import { VERSION } from '../runtime/version.ts'
import type { RecordCipher } from '../store/crypto/record-cipher.ts'
import { loadYaml } from '../store/document.ts'
import { onlyIds } from '../store/only-ids.ts'
import type { Announcement } from '../store/redis/source.ts'
import type { Source } from '../store/source.ts'
import type { ReportWriter } from './view/report-writer.ts'
import type { View } from './view/view.ts'
import type { StoreConfig } from './config.ts'
import type { GuestSide } from './guest-side.ts'
import type { Metrics } from './metrics.ts'

/** The pause after a report could not be written to the store. */
const REPORT_RETRY_MS = 2_000

export async function buildSource(
  store: StoreConfig,
  cipher: RecordCipher | undefined,
  userDataMaxBytes: number,
  announcement: Announcement,
  log: Logger,
): Promise<Source> {
  if (store.kind === 'files') {
    const { FileSource } = await import('../store/files/source.ts')
    await loadYaml()
    return onlyIds(new FileSource(store.directory, userDataMaxBytes, log))
  }
  const { RedisSource } = await import('../store/redis/source.ts')
  return onlyIds(
    new RedisSource({
      settings: store,
      region: store.region,
      hypervisor: store.hypervisor,
      cipher,
      userDataMaxBytes,
      announcement,
    }),
  )
}

/** How this daemon announces itself in the store. Each reason for a failure is logged once. */
export function buildAnnouncement(
  view: View,
  lagMs: () => number,
  operatorPlace: () => HostPort | undefined,
  log: Logger,
): Announcement {
  const logged = new Set<string>()
  return {
    state: () => {
      const place = operatorPlace()
      return {
        version: VERSION,
        instances: view.size,
        lagSeconds: Math.floor(lagMs() / 1000),
        ...(place !== undefined && isReachable(place) && { operator: formatHostPort(place) }),
      }
    },
    failed: (reason) => {
      if (!logged.has(reason)) {
        log.warn(
          { reason },
          'this daemon cannot announce itself in the store, so publishers warn of an unknown hypervisor: ' +
            'allow its Redis user +set on the key of its announcement (deploy/redis.acl)',
        )
      }
      logged.add(reason)
    },
  }
}

/** Begins to write to the store what guests report. Undefined: the store keeps no reports. */
export async function startReportWriter(
  { hypervisor }: StoreConfig,
  { view, reports }: GuestSide,
  { reports: store }: Source,
  { reportWrites: writes }: Metrics,
  log: Logger,
): Promise<ReportWriter | undefined> {
  if (store === undefined || hypervisor === undefined) return undefined
  const { ReportWriter } = await import('./view/report-writer.ts')
  const find = (id: string) => view.get(id)
  const restored = view.instances()
  const writer = new ReportWriter({ store, hypervisor, find, reports, restored, writes, retryMs: REPORT_RETRY_MS, log })
  view.onChange((id) => {
    writer.changed(id)
  })
  return writer
}
