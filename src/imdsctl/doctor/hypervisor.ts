/** How checks look at this hypervisor: its commands, its files, its store, and the operators' API of its daemon. */
import { statSync } from 'node:fs'
import { checkService, type Settings } from '../../imdsd/check.ts'
import { ask, QUESTIONS, parsedAnswer, type DaemonQuestion } from '../../imdsd/operator/client.ts'
import { operatorSocketOf } from '../../imdsd/operator/paths.ts'
import type { Parsed } from '../../metadata/parsed.ts'
import { runCommand } from '../../runtime/command.ts'
import type { Environment } from '../../runtime/variables.ts'
import { VERSION } from '../../runtime/installation.ts'
import { probeStore } from '../../store/probe.ts'
import type { FileState } from '../../imdsd/conditions/state.ts'
import { stateOf, unseen } from '../../imdsd/state-watch.ts'
import type { DoctorState } from './hypervisor-state.ts'

/** The daemon waits for its first document for 3 s. */
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

function lookWith(settings: Settings, operator: string): DoctorState {
  const answerTo = <T>(question: DaemonQuestion<T>) =>
    once(async () => parsedAnswer(await ask(operator, question, AbortSignal.timeout(DAEMON_TIMEOUT_MS)), operator))
  const { config } = settings
  return {
    settings,
    version: VERSION,
    run: runCommand,
    file: lookAtFile,
    readiness: answerTo(QUESTIONS.readiness),
    firewall: answerTo(QUESTIONS.firewall(undefined)),
    store: once(async () => (config === undefined ? [] : probeStore(config.store))),
  }
}

function lookAtFile(path: string): FileState {
  try {
    return stateOf(statSync(path))
  } catch (error) {
    return unseen(error)
  }
}

/** Asks at the first call only. */
function once<T>(ask: () => Promise<T>): () => Promise<T> {
  let answer: Promise<T> | undefined
  return () => (answer ??= ask())
}
