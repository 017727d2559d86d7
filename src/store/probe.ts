/** Tries a store for `--check --connect`, and writes nothing. */
import { readdir } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { failure, ok, type Finding } from '../runtime/check.ts'
import { EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'
import { RECORD_ENDINGS } from './document.ts'
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

/**
 * Tries a store, for a few seconds at most, and returns what it finds, the worst first. A failure: the store cannot be
 * used. Afterwards a connection may be open: end the process.
 */
export async function probeStore(store: ProbedStore): Promise<readonly Finding[]> {
  const late = failure(
    `it has not answered within ${TIMEOUT_MS / 1000} s`,
    'see whether Redis runs and the network reaches it',
  )
  return Promise.race([sleep(TIMEOUT_MS, [late], { ref: false }), probe(store)]).catch(async (error: unknown) => {
    const { adviceOf } = await import('./redis/reasons.ts')
    return [{ severity: 'failure', ...adviceOf(error) }]
  })
}

/** Prints what a probe has found, and returns the exit status. `lead`: what each line on standard output begins with. */
export function printProbe(output: Output, findings: readonly Finding[], lead: string): number {
  const texts = (severity: Finding['severity']) =>
    findings.flatMap((finding) =>
      finding.severity !== severity
        ? []
        : finding.severity === 'ok'
          ? finding.text
          : `${finding.text}: ${finding.remedy}`,
    )
  for (const text of [...texts('ok'), ...texts('warning')]) output.print(`${lead}the store: ${text}`)
  const failures = texts('failure')
  for (const text of failures) output.warn(`the store cannot be used: ${text}`)
  return failures.length > 0 ? EXIT.unavailable : EXIT.done
}

/** The store of a publisher with valid settings. */
export function storeOfPublisher(settings: StoreSettings): ProbedStore {
  const store = parseStoreUrl(settings.url)
  return store?.kind === 'files'
    ? store
    : { ...settings, kind: 'redis', region: settings.region ?? '', hypervisor: undefined }
}

async function probe(store: ProbedStore): Promise<readonly Finding[]> {
  if (store.kind === 'redis')
    return (await import('./redis/probe.ts')).probeRedis(store, store.region, store.hypervisor)
  const { idOfFile } = await import('./files/load.ts')
  const isRecord = (name: string) => RECORD_ENDINGS.some((ending) => name.endsWith(ending))
  const ids = (await readdir(store.directory)).filter(isRecord).map(idOfFile)
  return [ok(`${store.directory} has ${new Set(ids.filter((id) => id !== undefined)).size} records`)]
}
