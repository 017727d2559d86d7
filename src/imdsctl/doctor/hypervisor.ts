/** How checks look at this hypervisor: its commands, its files, its store, and the operators' API of its daemon. */
import { lstatSync, statfsSync, statSync, type Stats } from 'node:fs'
import { join } from 'node:path'
import { checkService, type CheckedService } from '../../imdsd/check.ts'
import type { Config } from '../../imdsd/config.ts'
import { stateKeys, stateOwner } from '../../imdsd/state-owner.ts'
import { parseTokenKeys } from '../../imdsd/guest/token.ts'
import { ask, QUESTIONS, parsedAnswer, type DaemonQuestion } from '../../imdsd/operator/client.ts'
import { operatorSocketOf } from '../../imdsd/operator/paths.ts'
import type { Parsed } from '../../metadata/parsed.ts'
import { asUser } from '../../runtime/other-user.ts'
import { runCommand } from '../../runtime/command.ts'
import type { Environment } from '../../runtime/variables.ts'
import { readSettingFile } from '../../runtime/regular-file.ts'
import { VERSION } from '../../runtime/installation.ts'
import { probeStore } from '../../store/probe.ts'
import { readChanges, replay } from '../../imdsd/journal/restore.ts'
import { journalPath } from '../../imdsd/journal/state-files.ts'
import { View } from '../../imdsd/view/view.ts'
import type { FileState } from '../../imdsd/conditions/state.ts'
import { freeBytesIn, stateOf, unseen } from '../../imdsd/state-watch.ts'
import type { DoctorState, JournalState } from './hypervisor-state.ts'

/** The daemon waits for its first document for 5 s. */
const DAEMON_TIMEOUT_MS = 7_000

/**
 * Where to look. `env`: without the variables of the service. `service`: if there is a service, its variables alone.
 * `operator`: the operators' API of the daemon; undefined: the unix socket that the variables name.
 */
export interface DoctorSources {
  readonly env: Environment
  readonly environmentFile: string | undefined
  readonly service?: boolean
  readonly operator: string | undefined
}

/** Looks at this hypervisor. The only fault is that the environment file cannot be read. */
export function lookAtHypervisor({
  env,
  environmentFile,
  service,
  operator,
}: DoctorSources): Parsed<DoctorState, string> {
  const all = checkService(env, environmentFile, Date.now())
  const isReplaced = all.ok && all.value.replaced.length > 0
  const checked = service === true && isReplaced ? checkService(withoutOurs(env), environmentFile, Date.now()) : all
  return checked.ok
    ? { ok: true, value: lookWith(checked.value, operator ?? operatorSocketOf(checked.value.variables)) }
    : checked
}

function withoutOurs(env: Environment): Environment {
  return Object.fromEntries(Object.entries(env).filter(([name]) => !name.startsWith('IMDS_')))
}

function lookWith(settings: CheckedService, operator: string): DoctorState {
  const answerTo = <T>(question: DaemonQuestion<T>) =>
    once(async () => parsedAnswer(await ask(operator, question, AbortSignal.timeout(DAEMON_TIMEOUT_MS)), operator))
  const { config, user } = settings
  const firewall = answerTo(QUESTIONS.firewall(undefined))
  return {
    settings,
    version: VERSION,
    isRoot: process.getuid?.() === 0,
    operator,
    run: runCommand,
    file: lookAtFile,
    freeBytes,
    readiness: answerTo(QUESTIONS.readiness),
    metrics: answerTo(QUESTIONS.metrics),
    listeners: firewall,
    firewall,
    store: once(async () => (config === undefined ? [] : probeStore(config.store))),
    journal: once(async () =>
      config === undefined ? { kind: 'unreadable', reason: 'the configuration is not valid' } : readState(config, user),
    ),
  }
}

function lookAtFile(path: string): FileState {
  try {
    return stateOf(statSync(path))
  } catch (error) {
    return unseen(error)
  }
}

function freeBytes(path: string): number | undefined {
  try {
    return freeBytesIn(statfsSync(path))
  } catch {
    return undefined
  }
}

/** How often files are read that the daemon replaces meanwhile. */
const MAX_READS = 3

/** Reads the journal with the rights of the daemon's user, who can put any file there. */
async function readState(config: Config, user: string | undefined, reads = 1): Promise<JournalState> {
  const asDaemon = <T>(use: () => T): T => (user === undefined ? use() : asUser(user, use))
  const path = journalPath(config.stateDirectory)
  const look = () => asDaemon(() => lstatSync(path, { throwIfNoEntry: false }))
  let file: Stats | undefined
  try {
    file = look()
    if (file === undefined) return { kind: 'none' }
    if (!file.isFile()) return { kind: 'unreadable', reason: `${path} is no regular file` }
    const keys = config.tokenKeys ?? asDaemon(() => ownKeys(config.stateDirectory))
    const [owner, state] = [stateOwner(config.store), stateKeys(config.store, keys)]
    const { changes, compared } = await readChanges(path, owner, state, asDaemon)
    const view = new View({}, () => 0, false)
    replay(changes, view, () => undefined)
    return { kind: 'read', ageMs: Date.now() - compared.atMs, instances: view.size }
  } catch (error) {
    if (reads < MAX_READS && file !== undefined && look()?.ino !== file.ino) return readState(config, user, reads + 1)
    return { kind: 'unreadable', reason: (error as Error).message }
  }
}

/** The hypervisor's own key, as the daemon has saved it. */
function ownKeys(stateDirectory: string): readonly Uint8Array[] {
  const path = join(stateDirectory, 'token-key')
  const parsed = parseTokenKeys(readSettingFile(path, 'refuse').toString('latin1'))
  if (!parsed.ok) throw new Error(`${path} ${parsed.faults.join('; ')}`)
  return parsed.value
}

/** Asks at the first call only. */
function once<T>(ask: () => Promise<T>): () => Promise<T> {
  let answer: Promise<T> | undefined
  return () => (answer ??= ask())
}
