/**
 * A hypervisor that systemd boots, with our unchanged units, the daemon installed as by the package, and guests. Or a
 * bare host, on which a test installs imds.
 *
 * systemd is the first process in its own namespaces, on a temporary overlay of this machine's files. An imds that is
 * installed on this machine is hidden. The distribution has no units, and its targets are empty. Two things differ from
 * a real host: there is no journal (a drop-in sends the log to a file), and OOMScoreAdjust= and LimitNOFILE= have no
 * effect where root lacks CAP_SYS_RESOURCE.
 */
import { chmodSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { ENDLESS_SHARE, until } from '../programs/daemon.ts'
import { must, startChild } from '../programs/processes.ts'
import { makeHypervisor, SERVICE, withoutNamespaces, type Guest, type Hypervisor, type Link } from './namespaces.ts'
import { buildInto } from '../programs/imds.ts'
import { without } from '../packages.ts'
import { shortDirectory } from '../test-directory.ts'

const ROOT = new URL('../../../', import.meta.url).pathname
const SYSTEMD = '/usr/lib/systemd/systemd'

/** A shell without the Node options that tap passes to child processes: their files are not on the host. */
const SHELL = ['env', '-u', 'NODE_OPTIONS', 'sh', '-c']

/** The link of a guest, for tests that need no particular one. */
export const LINK: Link = { address: '10.0.0.2/30', gateway: '10.0.0.1', macAddress: '02:24:19:00:00:ee' }

/**
 * A running host. Its daemon is not started yet, and will read the records in /store. `within` is that of `Hypervisor`.
 */
export interface BootedHost {
  /** The root directory of the Debian whose files it has. */
  readonly files: string
  readonly within: readonly string[]
  readonly hypervisor: Hypervisor
  /** The id of systemd as the test sees it: a process in all namespaces of the host. */
  readonly pid: string
  /** The guests, in the order of their links. */
  readonly guests: readonly Guest[]
  /** Adds a guest. */
  readonly addGuest: (link: Link) => Promise<Guest>
  readonly systemctl: (...args: string[]) => Promise<void>
  /** Runs a shell command on the host. Returns its output; rejects if it fails. */
  readonly shell: (command: string, input?: string) => Promise<string>
  /** Like `shell`, but with the network, the PATH and the npm configuration of this machine. */
  readonly shellOnline: (command: string) => Promise<string>
  /** Returns properties of imds.service. */
  readonly show: (...properties: string[]) => Promise<Record<string, string>>
  /** Writes /etc/imds/imds.env, and adds an unlimited share for the guests. */
  readonly setEnv: (lines: string) => Promise<void>
  /** Writes a drop-in of a unit and makes systemd load it. */
  readonly dropIn: (unit: string, lines: string) => Promise<void>
}

/** For `skip` of a test: the reason why this machine cannot boot a host, or false if it can. */
export function withoutSystemd(): string | false {
  return without('systemd-analyze') || withoutNamespaces()
}

/**
 * Starts BOOT in a control group and namespaces, waits until its input ends, then kills all of it and removes the
 * control group.
 */
const SUPERVISE = `
set -eu
mount -t cgroup2 cgroup2 /mnt
group=/mnt/imds-test-$$
mkdir $group
unshare --mount --pid --fork --kill-child sh -c 'echo 0 > $0/cgroup.procs && exec unshare --cgroup --ipc --uts sh -c "$1" boot "$2" "$3" "$4" "$5" "$6"' $group "$0" "$@" &
cat
kill -KILL $! 2> /dev/null || true
{ wait $!; } 2> /dev/null || true
while grep -q "populated 1" $group/cgroup.events; do sleep 0.05; done
find $group -depth -type d -exec rmdir {} +
`

/** Prepares the file system and starts systemd. Prints `up` with its process id as the test sees it. */
const BOOT = `
set -eu
umask 022
read -r pid rest < /proc/self/stat # here /proc is still that of the test
repository=$1 dist=$2 node=$3 devices=$4 files=$5 # a bare host has no dist
mount -t tmpfs tmpfs /mnt
cd /mnt
mkdir upper work root
mount -t overlay -o lowerdir=$files,upperdir=/mnt/upper,workdir=/mnt/work overlay root
cd root
mount -t proc proc proc
if [ "$devices" ]; then mount -t sysfs sysfs sys; else mount -t sysfs -o ro sysfs sys; fi # systemd has device units only if it may write
mount -t cgroup2 cgroup2 sys/fs/cgroup
for empty in dev etc/systemd usr/lib/systemd/system run tmp; do mount -t tmpfs -o mode=755 tmpfs $empty; done
mkdir etc/systemd/system
chmod 1777 tmp
mkdir dev/shm dev/pts
chmod 1777 dev/shm
for device in full null random tty urandom zero; do
  touch dev/$device
  mount --bind /dev/$device dev/$device
done
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount --bind -o ro proc/sys proc/sys
mount --bind proc/sys/net proc/sys/net
mount -o remount,bind,rw proc/sys/net # those of its own namespace

rm -f usr/sbin/policy-rc.d # in a container it says that packages start no unit

# hide an imds that is installed on this machine
rm -rf usr/lib/imds* usr/bin/imds* etc/imds etc/sysusers.d/imds.conf var/lib/imds var/cache/imds var/cache/imds-api
sed -i '/^imds\\(-api\\)\\?:/d' etc/passwd etc/group etc/shadow etc/gshadow

mkdir store units changes
mount --bind /mnt/upper changes
for target in sysinit basic network multi-user sockets shutdown; do echo '[Unit]' > units/$target.target; done
mkdir units/imds.service.d
printf '[Service]\\nStandardOutput=append:/log\\nStandardError=append:/log\\n' > units/imds.service.d/log.conf
if [ "$dist" ]; then
  mkdir -p etc/imds usr/lib/imds-node usr/lib/imds/dist usr/lib/imds/node_modules
  cp $repository/systemd/imds* units
  touch usr/lib/imds-node/node
  mount --bind $node usr/lib/imds-node/node
  cp $repository/package.json usr/lib/imds
  cp -a $dist/. usr/lib/imds/dist
  for name in imdsctl imds-api; do ln -s imds usr/lib/$name; done # one copy for all packages
  for command in imdsd=main imdsctl=imdsctl imds-api=api; do
    printf '#!/bin/sh\\nexec /usr/lib/imds-node/node /usr/lib/imds/dist/%s.js "$@"\\n' \${command#*=} > usr/bin/\${command%=*}
    chmod +x usr/bin/\${command%=*}
  done
  mount --bind $repository/node_modules usr/lib/imds/node_modules
fi

if [ "$devices" ]; then # what udev knows of the links: there is no udev here
  mkdir -p run/udev/data run/udev/tags/systemd
  for link in sys/class/net/*; do
    index=$(cat $link/ifindex)
    printf 'I:1\\nE:SYSTEMD_ALIAS=/sys/subsystem/net/devices/%s\\nG:systemd\\nQ:systemd\\nV:1\\n' \${link##*/} > run/udev/data/n$index
    touch run/udev/tags/systemd/n$index
  done
fi

mkdir run/old-root
pivot_root . run/old-root
umount -l /run/old-root
mount --make-rshared / # as systemd does at boot; credentials need it
[ -z "$dist" ] || systemd-sysusers /units/imds.sysusers 2> /dev/null
echo up $pid
exec env -i container=test PATH=/usr/sbin:/usr/bin SYSTEMD_UNIT_PATH=/units:/etc/systemd/system:/usr/lib/systemd/system ${SYSTEMD} --unit=sysinit.target --log-target=null --show-status=no > /dev/null 2>&1
`

/**
 * Boots a host with an installed imds and a guest on each link. It stops with the test. `devices`: systemd has a device
 * unit for each link, as with udev, so a unit that needs a missing link waits for it.
 */
export async function bootHost(
  t: Test,
  links: readonly Link[] = [LINK],
  { devices = false } = {},
): Promise<BootedHost> {
  const directory = shortDirectory(t)
  chmodSync(directory, 0o755)
  const dist = join(directory, 'dist')
  buildInto(dist)
  const host = await boot(t, links, '/', dist, devices)
  await host.setEnv('IMDS_STORE=file:/store')
  return host
}

/**
 * Boots a host without imds. Its directory /changes shows what differs from `files`, the root directory of a Debian:
 * this machine's or another; except in /etc/systemd, /usr/lib/systemd/system, /run and /tmp.
 */
export async function bootBareHost(t: Test, links: readonly Link[], files = '/'): Promise<BootedHost> {
  return boot(t, links, files, '', false)
}

async function boot(
  t: Test,
  links: readonly Link[],
  files: string,
  dist: string,
  devices: boolean,
): Promise<BootedHost> {
  const hypervisor = await makeHypervisor()
  t.teardown(() => hypervisor.remove())
  const guests: Guest[] = []
  for (const link of links) guests.push(await hypervisor.addGuest(link))
  await must([...hypervisor.within, 'ip', 'address', 'delete', `${SERVICE}/32`, 'dev', 'lo']) // the unit adds it
  const child = await startChild([
    ...hypervisor.within,
    'unshare',
    '--mount',
    'sh',
    '-c',
    SUPERVISE,
    BOOT,
    ROOT,
    dist,
    process.execPath,
    devices ? 'devices' : '',
    files,
  ])
  t.teardown(() => child.stop())
  const shell = async (command: string, input = '') => {
    const inside = ['nsenter', '--target', child.readyValue, '--all', '--root', '--wd', ...SHELL, command]
    return (await must(inside, { input, env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' } })).toString()
  }
  const shellOnline = async (command: string) => {
    const env = { ...process.env, npm_config_prefer_offline: 'true' } // what npm ci has fetched is in npm's cache
    return (
      await must(['nsenter', '--target', child.readyValue, '--mount', '--root', '--wd', ...SHELL, command], { env })
    ).toString()
  }
  const share = Object.entries(ENDLESS_SHARE)
    .map(([name, value]) => `${name}=${value}\n`)
    .join('')
  const setEnv = async (lines: string) => {
    await shell('cat > /etc/imds/imds.env', `${lines}\n${share}`)
  }
  await until(
    () =>
      shell('systemctl is-active sysinit.target').then(
        () => true,
        () => false,
      ),
    'systemd',
  )
  return {
    files,
    within: hypervisor.within,
    hypervisor,
    pid: child.readyValue,
    guests,
    addGuest: hypervisor.addGuest,
    shell,
    shellOnline,
    setEnv,
    systemctl: async (...args) => {
      await shell(['systemctl', ...args].join(' '))
    },
    show: async (...properties) => {
      const lines = (await shell(`systemctl show --property=${properties.join()} imds.service`)).trim().split('\n')
      return Object.fromEntries(lines.map((line) => line.split(/=(.*)/s).slice(0, 2) as [string, string]))
    },
    dropIn: async (unit, lines) => {
      const directory = `/etc/systemd/system/${unit}.d`
      await shell(`mkdir -p ${directory} && cat > ${directory}/test.conf && systemctl daemon-reload`, `${lines}\n`)
    },
  }
}

/** Starts Debian's PostgreSQL and Redis on a host, outside of systemd. */
export const START_STORES = `
set -e; bin=/usr/lib/postgresql/15/bin; install -d -o nobody /srv/postgresql; cd /srv/postgresql
run="setpriv --reuid nobody --clear-groups"
$run $bin/initdb --auth=trust --username=imds --encoding=UTF8 --no-sync data > /dev/null
$run $bin/pg_ctl --pgdata=data --wait --log=log --options="-c unix_socket_directories=/srv/postgresql -c fsync=off" start
$run redis-server --daemonize yes --dir /srv/postgresql --bind 127.0.0.1 --save '' --pidfile /srv/postgresql/redis.pid > /dev/null`
/** Names them in the configuration of imds-api. */
export const USE_STORES = `sed -i '${[
  's|^IMDS_STORE=.*|IMDS_STORE=redis://127.0.0.1:6379|',
  's|^IMDS_API_DATABASE=.*|IMDS_API_DATABASE=postgres://imds@127.0.0.1/postgres?sslmode=disable|',
].join('; ')}' /etc/imds/imds-api.env`
