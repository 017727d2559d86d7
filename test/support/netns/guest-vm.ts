/**
 * The operating system of a guest with SMBIOS strings, as in a virtual machine, although this machine may be a
 * container.
 */
import type { Test } from 'tap'
import { startMachine, type Machine } from './guest-machine.ts'
import type { Guest } from './namespaces.ts'

/** The files of /sys/class/dmi/id, which the kernel makes of SMBIOS strings. */
export type Dmi = Readonly<Partial<Record<'sys_vendor' | 'product_name' | 'product_serial' | 'product_uuid', string>>>

/** Starts a guest with SMBIOS strings. Its /sys/class has only them and the network. It stops with the test. */
export async function startVm(t: Test, guest: Guest, dmi: Dmi): Promise<Machine> {
  const machine = await startMachine(guest)
  t.teardown(() => machine.stop())
  const { status, stderr } = await machine.run([
    'sh',
    '-euc',
    `
    mkdir -p /run/class/dmi/id
    cp -a /sys/class/net /run/class
    mount --bind /run/class /sys/class
    printf '#!/bin/sh\\n[ "$1" ] && exit 1\\necho kvm\\n' > /usr/sbin/systemd-detect-virt
    chmod 755 /usr/sbin/systemd-detect-virt`,
  ])
  if (status !== 0) throw new Error(stderr)
  for (const [name, value] of Object.entries(dmi)) await machine.write(`/sys/class/dmi/id/${name}`, `${value}\n`)
  return machine
}
