/** The commands of imdsctl that look at this hypervisor: doctor and status. Each resolves with its exit status. */
import { setTimeout as sleep } from 'node:timers/promises'
import { CHECKS } from './doctor/checks.ts'
import { lookAtHypervisor, type DoctorSources } from './doctor/hypervisor.ts'
import type { DoctorState } from './doctor/hypervisor-state.ts'
import { buildStatus, statusRows, type DaemonStatus } from './doctor/status.ts'
import { ask, QUESTIONS, parsedAnswer } from '../imdsd/operator/client.ts'
import { printChecks, runChecks, type CheckResult } from '../runtime/check.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Sample } from '../runtime/metric-values.ts'
import type { Output } from '../runtime/output.ts'

export interface DoctorContext extends DoctorSources {
  readonly output: Output
}

/** The time between two looks at the metrics, in ms. */
const INTERVAL_MS = 1_000
const TIMEOUT_MS = 5_000

/** Prints the result of each check and the conditions of the daemon, and how many there are. */
export async function doctor(context: DoctorContext): Promise<number> {
  return printChecks(context.output, await findAll(lookFrom(context)))
}

async function findAll(look: DoctorState): Promise<readonly CheckResult[]> {
  const [results, read] = await Promise.all([runChecks(CHECKS, look), look.readiness()])
  return read.ok ? [...read.value.conditions, ...results] : results
}

/** Prints the state of the daemon with its rates, and the results of doctor that are not ok. */
export async function status(context: DoctorContext): Promise<number> {
  const look = lookFrom(context)
  const [results, daemon] = await Promise.all([findAll(look), lookAtDaemon(look.operator)])
  const found = results.filter(({ severity }) => severity !== 'ok')
  const rows = daemon === undefined ? [] : statusRows(daemon)
  return printChecks(context.output, results, found, rows, { daemon })
}

function lookFrom(sources: DoctorSources): DoctorState {
  const look = lookAtHypervisor(sources)
  if (!look.ok) throw new CommandFailure(EXIT.noInput, look.faults.join())
  return look.value
}

/** Looks at a daemon twice. Undefined: it does not answer, and the results of doctor say why. */
async function lookAtDaemon(operator: string): Promise<DaemonStatus | undefined> {
  const sample = async (): Promise<Sample | undefined> => {
    const read = parsedAnswer(await ask(operator, QUESTIONS.metrics, AbortSignal.timeout(TIMEOUT_MS)), operator)
    return read.ok ? { metrics: read.value, atMs: performance.now() } : undefined
  }
  const before = await sample()
  if (before === undefined) return undefined
  await sleep(INTERVAL_MS)
  const [after, readiness] = await Promise.all([
    sample(),
    ask(operator, QUESTIONS.readiness, AbortSignal.timeout(TIMEOUT_MS)).then((answer) =>
      parsedAnswer(answer, operator),
    ),
  ])
  return after === undefined || !readiness.ok
    ? undefined
    : buildStatus(readiness.value, before, after, Date.now() / 1000)
}
