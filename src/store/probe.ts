/** Tries a store for `--check --connect`, and writes nothing. */
import { setTimeout as sleep } from 'node:timers/promises'
import { failure, ok, warning, type Finding } from '../runtime/check.ts'
import type { Probe } from './redis/probe.ts'
import type { StoreSettings } from './settings.ts'
import { parseStoreUrl, type FileStore, type RedisFiles } from './url.ts'

/** A store to try. `hypervisor` undefined: as a publisher. */
export type ProbedStore =
  | FileStore
  | ({
      readonly kind: 'redis'
      readonly url: string
      readonly region: string
      readonly hypervisor: string | undefined
    } & RedisFiles)

/** Longer than the timeout of one connection, whose error says more. */
const TIMEOUT_MS = 6_000

/** Tries a store, for a few seconds at most. Afterwards a connection may be open: end the process. */
export async function probeStore(store: ProbedStore): Promise<Probe> {
  const timeout = sleep(
    TIMEOUT_MS,
    {
      findings: [],
      warnings: [],
      problems: [
        {
          text: `it has not answered within ${TIMEOUT_MS / 1000} s`,
          remedy: 'see whether Redis runs and the network reaches it; until then guests are served from memory',
        },
      ],
    },
    { ref: false },
  )
  return Promise.race([timeout, probe(store)]).catch(async (error: unknown) => {
    const { adviceOf } = await import('./redis/reasons.ts')
    return { findings: [], warnings: [], problems: [adviceOf(error)] }
  })
}

/** What a probe has found, as findings of a check: the worst first. */
export function probeFindings({ findings, warnings, problems }: Probe): Finding[] {
  return [
    ...problems.map(({ text, remedy }) => failure(text, remedy)),
    ...warnings.map(({ text, remedy }) => warning(text, remedy)),
    ...findings.map(ok),
  ]
}

/** The store of a publisher with valid settings. */
export function storeOfPublisher(settings: StoreSettings): ProbedStore {
  const store = parseStoreUrl(settings.url)
  return store?.kind === 'files'
    ? store
    : { ...settings, kind: 'redis', region: settings.region ?? '', hypervisor: undefined }
}

async function probe(store: ProbedStore): Promise<Probe> {
  if (store.kind === 'redis')
    return (await import('./redis/probe.ts')).probeRedis(store, store.region, store.hypervisor)
  const { listFiles } = await import('./files/stamps.ts')
  const records = [...(await listFiles(store.directory)).values()].filter((endings) => endings.includes('.json')).length
  return { findings: [`${store.directory} has ${records} records`], warnings: [], problems: [] }
}
