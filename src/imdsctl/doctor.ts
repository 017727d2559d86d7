/** The commands of imdsctl that look at this hypervisor: doctor and status. Each resolves with its exit status. */
import { CHECKS } from './doctor/checks.ts'
import { lookAtHypervisor, type DoctorSources } from './doctor/hypervisor.ts'
import type { DoctorState } from './doctor/hypervisor-state.ts'
import type { Readiness } from '../imdsd/operator/documents.ts'
import { formatFirewall } from '../imdsd/operator/readiness.ts'
import { formatDuration } from '../runtime/ago.ts'
import { printChecks, runChecks, STYLES, type CheckResult } from '../runtime/check.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'
import type { Cell } from '../runtime/terminal.ts'

export interface DoctorContext extends DoctorSources {
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
  return read.ok
    ? printChecks(context.output, results, found, statusRows(read.value), { daemon: read.value })
    : printChecks(context.output, results, found)
}

function lookFrom(sources: DoctorSources): DoctorState {
  const look = lookAtHypervisor(sources)
  if (!look.ok) throw new CommandFailure(EXIT.noInput, look.faults.join())
  return look.value
}

function statusRows(state: Readiness): (readonly Cell[])[] {
  const { ready, version, store, connected, viewAgeSeconds, instances, faulty, absent, contestedAddresses } = state
  const style = ready ? STYLES.ok : STYLES.failure
  return [
    ['imdsd', { text: `${version}, ${ready ? 'ready' : 'not ready'}`, style }],
    ['store', `${store}, ${connected ? 'connected' : 'not connected'}, compared ${formatDuration(viewAgeSeconds)} ago`],
    ['instances', `${instances}; faulty ${faulty}, absent ${absent}, contested addresses ${contestedAddresses}`],
    ['firewall', formatFirewall(state.firewall)],
  ]
}
