/**
 * The checks of `imdsctl doctor` that need root, a command or a probe, in the order in which it prints them. What the
 * daemon itself sees are its conditions (imdsd/conditions/).
 */
import { configuration, daemon, version } from './checks-of-daemon.ts'
import { keyFiles } from './checks-of-files.ts'
import { guests } from './checks-of-guests.ts'
import { clock, units } from './checks-of-hypervisor.ts'
import type { DoctorCheck } from './hypervisor-state.ts'

/** Conditions of the daemon that say why the store cannot be used. */
const UNREAD = ['store-lost', 'store-read-failed']

const store: DoctorCheck = {
  code: 'store',
  run: async ({ store: probe, readiness }) => {
    const read = await readiness()
    const isSaid = read.ok && read.value.conditions.some(({ code }) => UNREAD.includes(code))
    return isSaid ? [] : probe()
  },
}

export const CHECKS: readonly DoctorCheck[] = [configuration, units, daemon, version, store, guests, keyFiles, clock]
