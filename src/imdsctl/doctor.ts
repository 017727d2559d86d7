/** The commands of imdsctl that look at this hypervisor: doctor and status. Each resolves with its exit status. */
import { CHECKS } from './doctor/checks.ts'
import { lookAtHypervisor, type DoctorSources } from './doctor/hypervisor.ts'
import type { DoctorState } from './doctor/hypervisor-state.ts'
import { readinessFacts } from '../imdsd/operator/readiness.ts'
import { printChecks, runChecks, STYLES, type CheckResult } from '../runtime/check.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'

interface DoctorContext extends DoctorSources {
  readonly output: Output
}

/** Prints the result of each check and the conditions of the daemon, and how many there are. */
export async function doctor(context: DoctorContext): Promise<number> {
  return printChecks(context.output, await findAll(lookFrom(context)))
}

async function findAll(look: DoctorState): Promise<readonly CheckResult[]> {
  const [results, read] = await Promise.all([runChecks(CHECKS, look), look.readiness()])
  return read.ok ? [...read.value.conditions, ...results] : results
}

/** Prints the state of the daemon, and the results of doctor that are not ok. */
export async function status(context: DoctorContext): Promise<number> {
  const look = lookFrom(context)
  const [results, read] = await Promise.all([findAll(look), look.readiness()])
  const found = results.filter(({ severity }) => severity !== 'ok')
  if (!read.ok) return printChecks(context.output, results, found)
  const { ready, version } = read.value
  const text = `${version}, ${ready ? 'ready' : 'not ready'}`
  const title = ['imdsd', { text, style: ready ? STYLES.ok : STYLES.failure }]
  return printChecks(context.output, results, found, [title, ...readinessFacts(read.value)], { daemon: read.value })
}

function lookFrom(sources: DoctorSources): DoctorState {
  const look = lookAtHypervisor(sources)
  if (!look.ok) throw new CommandFailure(EXIT.noInput, look.faults.join())
  return look.value
}
