/** The hosts of docs/region.md, as systemd boots them: a control plane and three hypervisors, with ssh between them. */
import { readFileSync } from 'node:fs'
import type { Test } from 'tap'
import { must } from '../programs/processes.ts'
import { serveDirectory } from '../programs/web-server.ts'
import { bootBareHost, type BootedHost } from './booted-host.ts'

/** The name of each hypervisor with its address. */
export const HYPERVISORS = { hv1: '10.1.0.11', hv2: '10.1.0.12', hv3: '10.1.0.13' }
const ADDRESSES = { control: '10.1.0.10', ...HYPERVISORS }
const UNITS = ['redis-server.service', 'postgresql.service', 'postgresql@.service', 'prometheus.service']

export interface RegionHosts {
  readonly control: BootedHost
  readonly hypervisors: readonly [BootedHost, BootedHost, BootedHost]
  /** Runs a block of a document as root. Returns its output and errors; rejects if it fails. */
  readonly run: (host: BootedHost, block: string) => Promise<string>
}

/** Boots the hosts. `repository`: the directory of their packages, beside those of this machine. */
export async function bootRegion(t: Test, repository: string): Promise<RegionHosts> {
  const boot = () => bootBareHost(t, [])
  const control = await boot()
  const hypervisors = [await boot(), await boot(), await boot()] as const
  await connect(control, hypervisors)
  let url = ''
  for (const host of [control, ...hypervisors]) {
    url = await serveDirectory(t, host, repository)
    // Debian's repositories cannot be reached, and the index of man pages takes long
    await host.shell('rm -rf /etc/apt/sources.list* /var/lib/apt/lists/* /var/lib/man-db/auto-update')
    await host.shell('mkdir -p /etc/apt/sources.list.d')
    for (const unit of UNITS)
      await host.shell(`cat > /usr/lib/systemd/system/${unit}`, readFileSync(`/usr/lib/systemd/system/${unit}`, 'utf8'))
  }
  // as their installation does. systemd here has no directory for what postgresql-generator makes
  await control.shell(
    'mkdir /etc/systemd/system/postgresql.service.wants && ln -s /usr/lib/systemd/system/postgresql@.service ' +
      '/etc/systemd/system/postgresql.service.wants/postgresql@15-main.service && ' +
      'systemctl daemon-reload && systemctl start redis-server postgresql',
  )
  await addSsh(control, [control, ...hypervisors])
  const run = (host: BootedHost, code: string) =>
    host.shell(
      `export DEBIAN_FRONTEND=noninteractive PATH=/usr/local/bin:$PATH; exec 2>&1; ${code.replaceAll('https://packages.example.com', url)}`,
    )
  return { control, hypervisors, run }
}

/** Joins the hosts to the network 10.1.0.0/24. */
async function connect(control: BootedHost, hypervisors: readonly BootedHost[]): Promise<void> {
  const ip = ({ within }: BootedHost, command: string) => must([...within, 'ip', ...command.split(' ')])
  await ip(control, 'link add mgmt type bridge')
  await ip(control, `address add ${ADDRESSES.control}/24 dev mgmt`)
  await ip(control, 'link set mgmt up')
  for (const [i, other] of hypervisors.entries()) {
    await ip(control, `link add to${i} master mgmt type veth peer name mgmt netns ${other.pid}`)
    await ip(control, `link set to${i} up`)
    await ip(other, `address add ${Object.values(HYPERVISORS)[i]!}/24 dev mgmt`)
    await ip(other, 'link set mgmt up')
  }
}

/** Lets root of a host log in at others, which it knows by their names. */
async function addSsh(from: BootedHost, others: readonly BootedHost[]): Promise<void> {
  await from.shell(
    'mkdir -p /root/.ssh && rm -f /root/.ssh/* && ssh-keygen -q -t ed25519 -N "" -f /root/.ssh/id_ed25519',
  )
  const names = Object.entries(ADDRESSES).map(([name, address]) => `${address} ${name}\n`)
  await from.shell('cat >> /etc/hosts; echo "StrictHostKeyChecking accept-new" > /root/.ssh/config', names.join(''))
  const key = await from.shell('cat /root/.ssh/id_ed25519.pub')
  for (const other of others) {
    await other.shell('mkdir -p /root/.ssh /run/sshd && cat > /root/.ssh/authorized_keys && ssh-keygen -A', key)
    await other.shell('/usr/sbin/sshd -o UsePAM=no')
  }
}

/** Fails in place of the program, if this call, the same one for the nth time in a run, has not failed before. */
const FAILS_ONCE = `#!/bin/sh
call="\${0##*/} $*"
echo "$call" >> /tmp/calls
nth="$(grep -cxF "$call" /tmp/calls): $call"
grep -qxF "$nth" /tmp/failed || ! echo "$call" | grep -Eq "$FAILING" || { echo "$nth" >> /tmp/failed; exit 1; }
PATH=\${PATH#*:} exec "\${0##*/}" "$@"
`
const PROGRAMS = 'ssh imdsctl imds-api redis-cli migrate systemctl openssl'

/**
 * Runs a block of the control plane until it is done. Each of its calls that `failing` matches fails once: the block must
 * end there, and go on when it is repeated. Returns what the last run prints, and how many calls have failed.
 */
export async function runInSteps(
  t: Test,
  { control, run }: RegionHosts,
  block: string,
  failing: string,
): Promise<{ readonly printed: string; readonly failed: number }> {
  await control.shell(
    `: > /tmp/failed; mkdir -p /usr/local/failing; cd /usr/local/failing; tee ${PROGRAMS} > /dev/null; chmod +x *`,
    FAILS_ONCE,
  )
  for (let failed = 0; ; failed++) {
    const printed = await run(
      control,
      `rm -f /tmp/calls; export PATH=/usr/local/failing:$PATH FAILING='${failing}'; {\n${block}}; echo "status $?" > /tmp/status`,
    )
    if ((await control.shell('cat /tmp/status')) === 'status 0\n') return { printed, failed }
    const lastOf = (file: string) => control.shell(`tail -n 1 ${file}`)
    const [call, refused] = [await lastOf('/tmp/calls'), await lastOf('/tmp/failed')]
    t.equal(refused.replace(/^\d+: /, ''), call, 'nothing follows the call that fails')
    if ((await control.shell('wc -l < /tmp/failed')).trim() !== String(failed + 1)) throw new Error(printed)
  }
}
