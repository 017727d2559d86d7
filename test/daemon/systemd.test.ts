/**
 * The units, by systemd's own word: its checker, its rating, and a systemd that runs them.
 *
 * The last one boots as the first process of namespaces of its own, on an overlay of this machine's files that is thrown away, in a
 * hypervisor's network with one guest. It is given our units as they are, the daemon built and laid out as the package installs it, and
 * empty targets in place of a distribution's. Two things differ from a host: there is no journal (a drop-in sends the log to a file),
 * and a machine whose root lacks CAP_SYS_RESOURCE cannot have OOMScoreAdjust= and LimitNOFILE= applied.
 */
import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, copyFileSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { until } from '../support/daemon.ts'
import { must, startHeld } from '../support/held.ts'
import { anInstance } from '../support/instance.ts'
import { makeHypervisor, SERVICE, withoutNamespaces, type Guest } from '../support/namespaces.ts'

const ROOT = new URL('../../', import.meta.url).pathname
const UNITS = ['imds.service', 'imds-address.service'] as const
const SYSTEMD = '/usr/lib/systemd/systemd'

const withoutAnalyze = spawnSync('systemd-analyze', ['--version']).error !== undefined && 'systemd-analyze is missing: Debian has it in the package systemd'

/** What a unit says under a key: every line of it. */
function settings(unit: typeof UNITS[number], key: string): string[] {
  return readFileSync(`${ROOT}systemd/${unit}`, 'utf8').split('\n').filter((line) => line.startsWith(`${key}=`)).map((line) => line.slice(key.length + 1))
}

t.test('both units are clean for systemd\'s own checker', { skip: withoutAnalyze }, (t) => {
  // Looked at as on a host where the package is installed: a root directory with the units unchanged, systemd's own units, and
  // executable files where ExecStart= wants them.
  const root = mkdtempSync(join(tmpdir(), 'imds-units-'))
  t.teardown(() => { rmSync(root, { recursive: true }) })
  cpSync('/usr/lib/systemd/system', join(root, 'usr/lib/systemd/system'), { recursive: true, verbatimSymlinks: true })
  for (const executable of ['opt/imds/bin/node', 'usr/bin/ip']) {
    mkdirSync(join(root, executable, '..'), { recursive: true })
    writeFileSync(join(root, executable), '')
    chmodSync(join(root, executable), 0o755)
  }
  mkdirSync(join(root, 'etc/systemd/system'), { recursive: true })
  for (const unit of UNITS) copyFileSync(`${ROOT}systemd/${unit}`, join(root, 'etc/systemd/system', unit))
  for (const unit of UNITS) {
    const { status, stdout, stderr } = spawnSync('systemd-analyze', ['verify', `--root=${root}`, '--recursive-errors=no', unit], { encoding: 'utf8' })
    t.same({ status, said: stdout + stderr }, { status: 0, said: '' }, unit)
  }
  t.end()
})

t.test('both units are sandboxed to an exposure of at most 1.5', { skip: withoutAnalyze }, (t) => {
  for (const unit of UNITS) {
    const { stdout, stderr } = spawnSync('systemd-analyze', ['security', '--offline=true', `${ROOT}systemd/${unit}`], { encoding: 'utf8' })
    const exposure = /Overall exposure level for \S+: ([\d.]+)/.exec(stdout)?.[1]
    t.ok(Number(exposure) <= 1.5, `${unit}: ${exposure ?? stdout + stderr}`)
  }
  t.end()
})

t.test('the daemon\'s only capability is the one for port 80', (t) => {
  t.same(settings('imds.service', 'AmbientCapabilities'), ['CAP_NET_BIND_SERVICE'])
  t.same(settings('imds.service', 'CapabilityBoundingSet'), ['CAP_NET_BIND_SERVICE'])
  t.same(settings('imds.service', 'User'), ['imds'])
  t.end()
})

t.test('the daemon is the last to be killed for memory, and a crash loop never gives up', (t) => {
  t.ok(Number(settings('imds.service', 'OOMScoreAdjust')[0]) <= -900)
  t.same(['Restart', 'StartLimitIntervalSec', 'RestartPreventExitStatus'].flatMap((key) => settings('imds.service', key)), ['always', '0', '78'])
  t.end()
})

const withoutSystemd = withoutAnalyze || (spawnSync(SYSTEMD, ['--version']).status !== 0 && 'systemd is missing') || withoutNamespaces()

t.test('under systemd, in the whole sandbox', { skip: withoutSystemd }, async (t) => {
  const host = await startHost()
  t.teardown(() => host.stop())
  const { systemctl, shell, show, setEnv, guest } = host
  const answered = async () => (await guest.ask({ path: '/latest/meta-data/instance-id' })).body.toString() === 'srv-abcde'
  const listens = async (log: string) => until(async () => (await shell('cat /log || true')).includes(log), `"${log}" in the log`)

  await t.test('the address comes with the daemon, and a guest is answered there on port 80', async (t) => {
    t.notMatch(await shell('ip address show dev lo'), SERVICE)
    await systemctl('start', 'imds.service')
    await listens('first resync completed')
    t.match(await shell('ip address show dev lo'), `inet ${SERVICE}/32 scope host`)
    t.ok(await answered())
  })

  await t.test('the daemon has a user and one capability, can gain nothing, and writes to its state alone', async (t) => {
    const { MainPID: pid } = await show('MainPID')
    const status = await shell(`cat /proc/${pid!}/status`)
    const uid = (await shell('id -u imds')).trim()
    t.match(status, new RegExp(`^Uid:(\\t${uid}){4}$`, 'm'))
    for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) t.match(status, `${set}:\t0000000000000400`) // bit 10: CAP_NET_BIND_SERVICE
    t.match(status, 'NoNewPrivs:\t1')
    t.match(status, 'Seccomp:\t2')
    const mounts = (await shell(`cat /proc/${pid!}/mountinfo`)).split('\n').map((line) => line.split(' '))
    const optionsOf = (path: string) => mounts.findLast(([, , , , at]) => at === path)?.[5] ?? ''
    t.match(optionsOf('/'), /^ro,nosuid/)
    t.match(optionsOf('/var/lib/imds'), /^rw,nosuid,noexec/)
    t.match(await shell('stat -c "%U %a" /var/lib/imds'), 'imds 700')
  })

  await t.test('a daemon that is killed comes back by itself', async (t) => {
    await systemctl('kill', '--signal=KILL', 'imds.service')
    await until(async () => (await show('NRestarts'))['NRestarts'] === '1', 'the next start')
    await until(() => answered().catch(() => false), 'the daemon to come back')
    t.equal((await show('NRestarts'))['NRestarts'], '1')
  })

  await t.test('a bad configuration is not tried again', async (t) => {
    await systemctl('stop', 'imds.service')
    t.match(await show('Result', 'ExecMainStatus'), { Result: 'success', ExecMainStatus: '0' })
    await setEnv('IMDS_STORE=nonsense')
    await systemctl('start', 'imds.service')
    await until(async () => (await show('ActiveState'))['ActiveState'] === 'failed', 'the unit to fail')
    t.match(await show('SubState', 'ExecMainStatus', 'NRestarts'), { SubState: 'failed', ExecMainStatus: '78', NRestarts: '0' })
    t.match(await shell('cat /log'), 'IMDS_STORE must be')
  })

  await t.test('Redis\' password reaches the daemon as a credential', async (t) => {
    await shell('mkdir -p /units/imds.service.d && cat > /units/imds.service.d/redis-password.conf', readFileSync(`${ROOT}deploy/redis-password.conf`, 'utf8'))
    await shell('umask 077; echo secret > /etc/imds/redis-password; redis-server --requirepass secret --save "" --dir /tmp --daemonize yes')
    await setEnv('IMDS_STORE=redis://127.0.0.1\nIMDS_REGION=gb1\nIMDS_HYPERVISOR=hv1')
    await systemctl('daemon-reload')
    await systemctl('start', 'imds.service')
    await until(async () => (await shell('REDISCLI_AUTH=secret redis-cli client list')).includes('name=imds-notices'), 'the daemon in Redis')
    t.equal((await show('NRestarts'))['NRestarts'], '0')
  })

  await t.test('the address may be there before its unit, and goes when that stops', async (t) => {
    await shell(`systemctl stop imds-address.service; ip address add ${SERVICE}/32 dev lo`)
    await systemctl('start', 'imds-address.service')
    t.match(await shell('ip address show dev lo'), SERVICE)
    await systemctl('stop', 'imds-address.service')
    t.notMatch(await shell('ip address show dev lo'), SERVICE)
  })
})

interface Host {
  readonly guest: Guest
  readonly systemctl: (...args: string[]) => Promise<void>
  /** Runs a shell command on the host; gives its output, rejects when it fails. */
  readonly shell: (command: string, input?: string) => Promise<string>
  /** Properties of imds.service. */
  readonly show: (...properties: string[]) => Promise<Record<string, string>>
  /** Writes /etc/imds/imds.env. */
  readonly setEnv: (lines: string) => Promise<void>
  readonly stop: () => Promise<void>
}

/** Waits for the end of its input, then takes down what it started and the control group that it made for it. */
const HOLD = `
set -eu
mount -t cgroup2 cgroup2 /mnt
group=/mnt/imds-test-$$
mkdir $group
unshare --mount --pid --fork --kill-child sh -c 'echo 0 > $0/cgroup.procs && exec unshare --cgroup --ipc --uts sh -c "$1" boot "$2" "$3" "$4"' $group "$0" "$@" &
cat
kill -KILL $! 2> /dev/null || true
{ wait $!; } 2> /dev/null || true
while grep -q "populated 1" $group/cgroup.events; do sleep 0.05; done
find $group -depth -type d -exec rmdir {} +
`

const BOOT = `
set -eu
umask 022
read -r pid rest < /proc/self/stat # before /proc is the machine's own: the number by which the test knows us
repository=$1 dist=$2 node=$3
mount -t tmpfs tmpfs /mnt
cd /mnt
mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay root
cd root
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for empty in dev etc/systemd run tmp; do mount -t tmpfs -o mode=755 tmpfs $empty; done
chmod 1777 tmp
mkdir dev/shm dev/pts
for device in full null random tty urandom zero; do
  touch dev/$device
  mount --bind /dev/$device dev/$device
done
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount --bind -o ro proc/sys proc/sys

mkdir -p units etc/imds opt/imds/bin opt/imds/lib/node_modules/imds/dist opt/imds/lib/node_modules/imds/node_modules
cp $repository/systemd/imds* units
for target in sysinit basic network shutdown; do echo '[Unit]' > units/$target.target; done
mkdir units/imds.service.d
printf '[Service]\\nStandardOutput=append:/log\\nStandardError=append:/log\\n' > units/imds.service.d/log.conf
touch opt/imds/bin/node
mount --bind $node opt/imds/bin/node
cp $repository/package.json opt/imds/lib/node_modules/imds
mount --bind $dist opt/imds/lib/node_modules/imds/dist
mount --bind $repository/node_modules opt/imds/lib/node_modules/imds/node_modules

mkdir run/former
pivot_root . run/former
umount -l /run/former
mount --make-rshared / # as on any host that systemd boots; credentials need it
systemd-sysusers /units/imds.sysusers 2> /dev/null
echo up $pid
exec env -i container=test PATH=/usr/sbin:/usr/bin SYSTEMD_UNIT_PATH=/units ${SYSTEMD} --unit=sysinit.target --log-target=null --show-status=no > /dev/null 2>&1
`

async function startHost(): Promise<Host> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-systemd-'))
  chmodSync(directory, 0o755)
  const dist = join(directory, 'dist')
  execFileSync(process.execPath, [`${ROOT}node_modules/typescript/bin/tsc`, '-p', `${ROOT}tsconfig.build.json`, '--outDir', dist])
  const hypervisor = await makeHypervisor()
  const guest = await hypervisor.addGuest({ address: '10.0.0.2/30', gateway: '10.0.0.1', macAddress: '02:24:19:00:00:ee' })
  await must([...hypervisor.within, 'ip', 'address', 'delete', `${SERVICE}/32`, 'dev', 'lo']) // it is the unit's to bring
  const held = await startHeld([...hypervisor.within, 'unshare', '--mount', 'sh', '-c', HOLD, BOOT, ROOT, dist, process.execPath])
  const shell = async (command: string, input = '') => {
    const inside = ['nsenter', '--target', held.word, '--all', '--root', '--wd', 'sh', '-c', command]
    return (await must(inside, { input, env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' } })).toString()
  }
  const setEnv = async (lines: string) => { await shell('cat > /etc/imds/imds.env', `${lines}\n`) }
  await until(() => shell('systemctl is-active sysinit.target').then(() => true, () => false), 'systemd')
  await shell('mkdir /store && cat > /store/srv-abcde.json', JSON.stringify(anInstance()))
  await setEnv('IMDS_STORE=file:/store')
  return {
    guest, shell, setEnv,
    systemctl: async (...args) => { await shell(['systemctl', ...args].join(' ')) },
    show: async (...properties) => {
      const lines = (await shell(`systemctl show --property=${properties.join()} imds.service`)).trim().split('\n')
      return Object.fromEntries(lines.map((line) => line.split(/=(.*)/s).slice(0, 2) as [string, string]))
    },
    stop: async () => {
      await held.release()
      await hypervisor.remove()
      rmSync(directory, { recursive: true })
    },
  }
}
