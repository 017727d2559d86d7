/** The checks of `imdsctl doctor`, in the order in which it prints them: what explains the most comes first. */
import { configuration, daemon, descriptors, records, version } from './checks-of-daemon.ts'
import { identity, journal, keyFiles, stateDirectory } from './checks-of-files.ts'
import { firewall, guests } from './checks-of-guests.ts'
import { addresses, clock, listeners, packages, ports, units } from './checks-of-hypervisor.ts'
import { store, storeInUse } from './checks-of-store.ts'
import type { DaemonCheck, DoctorCheck } from './hypervisor-state.ts'

export const CHECKS: readonly DoctorCheck[] = [
  configuration,
  packages,
  units,
  daemon,
  version,
  listeners,
  addresses,
  ports,
  store,
  storeInUse,
  records,
  firewall,
  guests,
  keyFiles,
  identity,
  stateDirectory,
  journal,
  descriptors,
  clock,
]

/** Those that the daemon runs too. */
export const OF_DAEMON: readonly DaemonCheck[] = [
  daemon,
  addresses,
  storeInUse,
  records,
  firewall,
  identity,
  stateDirectory,
  descriptors,
  clock,
]

/** What it cannot check, for people. */
export const NOT_OF_DAEMON: readonly string[] = [
  ...CHECKS.filter((check) => !(OF_DAEMON as readonly DoctorCheck[]).includes(check)).map(({ name }) => name),
  'whether the clock is synchronised',
]
