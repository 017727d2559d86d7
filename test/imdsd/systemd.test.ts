/** The systemd units: checked by systemd's tools, and run by a booted systemd (support/netns/booted-host.ts). */
import { spawnSync } from 'node:child_process'
import { chmodSync, copyFileSync, cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { bootHost, LINK, withoutSystemd } from '../support/netns/booted-host.ts'
import { until } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startLoad, summary } from '../support/load/load.ts'
import { SERVICE } from '../support/netns/namespaces.ts'
import { must, run } from '../support/programs/processes.ts'
import { executed } from '../tools/documents.ts'
import { without } from '../support/packages.ts'
import { shortDirectory } from '../support/test-directory.ts'

const ROOT = new URL('../../', import.meta.url).pathname
/** imdsctl as the package installs it. */
const IMDSCTL = '/usr/lib/imds-node/node /usr/lib/imds/dist/imdsctl.js'
const SERVICES = ['imds.service', 'imds-address.service', 'imds-firewall.service', 'imds-api.service'] as const
const FILES = [...SERVICES, 'imds.socket', 'imds-network@.socket'] as const
const UNITS = [...SERVICES, 'imds.socket', 'imds-network@red.socket']

/** Prints whether Node.js took modules from its own compiled code, and how many it compiled from their source. */
const COUNT_COMPILED = `
const { internalBinding } = require('internal/test/binding')
for (const name of ['http', 'https', 'crypto', 'stream']) require('node:' + name)
const { compiledWithCache, compiledWithoutCache } = internalBinding('builtins').getCacheUsage()
console.log(compiledWithCache.size > 20, compiledWithoutCache.size)`

/** The values of a key in a unit. */
function settings(unit: (typeof FILES)[number], key: string): string[] {
  return readFileSync(`${ROOT}systemd/${unit}`, 'utf8')
    .split('\n')
    .filter((line) => line.startsWith(`${key}=`))
    .map((line) => line.slice(key.length + 1))
}

t.test("systemd's checker accepts the units", { skip: without('systemd-analyze') }, (t) => {
  // A root directory as after the installation of the package: our units, systemd's own, and the executables of
  // ExecStart=.
  const root = shortDirectory(t)
  cpSync('/usr/lib/systemd/system', join(root, 'usr/lib/systemd/system'), { recursive: true, verbatimSymlinks: true })
  for (const executable of ['usr/lib/imds-node/node', 'usr/bin/ip', 'usr/bin/sh', 'bin/sh']) {
    mkdirSync(join(root, executable, '..'), { recursive: true })
    writeFileSync(join(root, executable), '')
    chmodSync(join(root, executable), 0o755)
  }
  mkdirSync(join(root, 'etc/systemd/system'), { recursive: true })
  for (const file of FILES) copyFileSync(`${ROOT}systemd/${file}`, join(root, 'etc/systemd/system', file))
  for (const unit of UNITS) {
    const { status, stdout, stderr } = spawnSync(
      'systemd-analyze',
      ['verify', `--root=${root}`, '--recursive-errors=no', unit],
      { encoding: 'utf8' },
    )
    t.same({ status, output: stdout + stderr }, { status: 0, output: '' }, unit)
  }
  t.end()
})

t.test('no option of a unit makes Node.js compile its own code again at each start', async (t) => {
  const commands = SERVICES.flatMap((unit) => settings(unit, 'ExecStart')).filter((text) =>
    text.includes('/usr/lib/imds-node/node '),
  )
  t.equal(commands.length, 3)
  for (const command of commands) {
    const options = command.split(' ').filter((word) => word.startsWith('--') && !/^--(apply|watch)$/.test(word))
    t.not(options.length, 0)
    const { stdout, stderr } = await run([process.execPath, ...options, '--expose-internals', '-e', COUNT_COMPILED])
    t.same(stdout.toString(), 'true 0\n', `${command}\n${stderr}`)
  }
})

t.test('systemd-analyze rates the exposure of each service at most 1.5', { skip: without('systemd-analyze') }, (t) => {
  for (const unit of SERVICES) {
    const { stdout, stderr } = spawnSync('systemd-analyze', ['security', '--offline=true', `${ROOT}systemd/${unit}`], {
      encoding: 'utf8',
    })
    const exposure = /Overall exposure level for \S+: ([\d.]+)/.exec(stdout)?.[1]
    t.ok(Number(exposure) <= 1.5, `${unit}: ${exposure ?? stdout + stderr}`)
  }
  t.end()
})

t.test('the unit of the daemon allows one capability, which it needs for port 80', (t) => {
  t.same(settings('imds.service', 'AmbientCapabilities'), ['CAP_NET_BIND_SERVICE'])
  t.same(settings('imds.service', 'CapabilityBoundingSet'), ['CAP_NET_BIND_SERVICE'])
  t.same(settings('imds.service', 'User'), ['imds'])
  t.end()
})

t.test('the OOM killer spares the daemon, and systemd restarts it without a limit', (t) => {
  t.ok(Number(settings('imds.service', 'OOMScoreAdjust')[0]) <= -900)
  t.same(
    ['Restart', 'StartLimitIntervalSec', 'RestartPreventExitStatus'].flatMap((key) => settings('imds.service', key)),
    ['always', '0', '78'],
  )
  t.end()
})

t.test('under systemd, in the sandbox of the units', { skip: withoutSystemd() }, async (t) => {
  const host = await bootHost(t, [{ ...LINK, device: 'tap-int-ds42k' }])
  const {
    systemctl,
    shell,
    show,
    setEnv,
    guests: [guest],
  } = host
  await shell('cat > /store/srv-abcde.json', JSON.stringify(anInstance()))
  const answered = async () =>
    (await guest!.ask({ path: '/latest/meta-data/instance-id' })).body.toString() === 'srv-abcde'
  const listens = async (log: string) =>
    until(async () => (await shell('cat /log || true')).includes(log), `"${log}" in the log`)

  await t.test('the address is added with the daemon, and a guest is served there on port 80', async (t) => {
    t.notMatch(await shell('ip address show dev lo'), SERVICE)
    await systemctl('start', 'imds.service')
    t.match(
      await show('ActiveState', 'SubState', 'Type'),
      { ActiveState: 'active', SubState: 'running', Type: 'notify' },
      'the daemon has reported READY',
    )
    await listens('first resync completed')
    t.match(await shell('ip address show dev lo'), `inet ${SERVICE}/32 scope host`)
    t.ok(await answered())
  })

  await t.test('the daemon has its own user and one capability, and writes only to its state and cache', async (t) => {
    const { MainPID: pid } = await show('MainPID')
    const status = await shell(`cat /proc/${pid!}/status`)
    const uid = (await shell('id -u imds')).trim()
    t.match(status, new RegExp(`^Uid:(\\t${uid}){4}$`, 'm'))
    // bit 10: CAP_NET_BIND_SERVICE
    for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) t.match(status, `${set}:\t0000000000000400`)
    t.match(status, 'NoNewPrivs:\t1')
    t.match(status, 'Seccomp:\t2')
    const mounts = (await shell(`cat /proc/${pid!}/mountinfo`)).split('\n').map((line) => line.split(' '))
    const optionsOf = (path: string) => mounts.findLast(([, , , , at]) => at === path)?.[5] ?? ''
    t.match(optionsOf('/'), /^ro,nosuid/)
    for (const path of ['/var/lib/imds', '/var/cache/imds']) {
      t.match(optionsOf(path), /^rw,nosuid,noexec/)
      t.match(await shell(`stat -c "%U %a" ${path}`), 'imds 700')
    }
    t.match(optionsOf('/run/imds'), /^rw,nosuid,(nodev,)?noexec/)
    t.match(await shell('stat -c "%U %G %a" /run/imds /run/imds/operator.sock'), 'imds imds 750\nimds imds 660')
  })

  await t.test('the firewall agent has one capability and maintains its rules', async (t) => {
    await setEnv('IMDS_STORE=file:/store\nIMDS_FIREWALL=required')
    await systemctl('restart', 'imds.service')
    await systemctl('start', 'imds-firewall.service')
    await until(
      async () =>
        (await shell('nft list ruleset')).includes(
          '"tap-int-ds42k" . 02:24:19:00:00:ee . 10.0.0.2 . 169.254.169.254 . 80',
        ),
      'the rules',
    )
    await until(() => answered().catch(() => false), 'the daemon to know of them')
    const pid = (await shell('systemctl show --property=MainPID --value imds-firewall.service')).trim()
    const status = await shell(`cat /proc/${pid}/status`)
    t.notMatch(status, /^Uid:\t0/m)
    // bit 12: CAP_NET_ADMIN
    for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) t.match(status, `${set}:\t0000000000001000`)
    await shell('nft flush ruleset')
    await until(async () => (await shell('nft list tables')).includes('inet imds'), 'the rules to be restored', 15_000)
    await systemctl('stop', 'imds-firewall.service')
    t.match(await shell('nft list tables'), 'inet imds', 'the rules stay')
    t.ok(await answered())
    await setEnv('IMDS_STORE=file:/store')
    await systemctl('restart', 'imds.service')
  })

  await t.test('the documented commands add the IPv6 address of the service; no guest is refused', async (t) => {
    const listener = 'fd00:ec2::254'
    const address = 'fd00:24:19::2'
    const interfaces = [{ ...LINK, id: 'int-ds42k', ipv4Addresses: ['10.0.0.2/30'], ipv6Addresses: [`${address}/64`] }]
    const record = anInstance({ revision: 2, interfaces, options: { httpProtocolIpv6: 'enabled' } })
    await shell('cat > /store/srv-abcde.json', JSON.stringify(record))
    await setEnv(`IMDS_STORE=file:/store\nIMDS_FIREWALL=required\nIMDS_LISTEN=${SERVICE}:80`)
    await systemctl('enable', 'imds.socket')
    await systemctl('restart', 'imds.service')
    await systemctl('start', 'imds-firewall.service')
    await until(() => answered().catch(() => false), 'the rules')
    const addresses = async () => (await shell('ip -o address show dev lo')).match(/inet6? \S+/g)!.sort()
    const before = await addresses()
    /** Runs a block with this address in place of its own. */
    const runBlock = (block: string) => shell(`address=${listener}; ${block.replace(/^address=.*\n/, '')}`)
    const load = await startLoad(guest!, { clients: 4, keepAlive: false })
    await load.more(50)
    await runBlock(executed('docs/install.md', 'listen'))
    t.same(await addresses(), [...before, `inet6 ${listener}/128`].sort())
    await shell('ip address add fd00:24:19::1/64 dev tap-int-ds42k nodad')
    await must([...guest!.within, 'ip', 'address', 'add', `${address}/64`, 'dev', 'eth0', 'nodad'])
    await must([...guest!.within, 'ip', 'route', 'add', listener, 'via', 'fd00:24:19::1'])
    const url = `http://[${listener}]/latest/meta-data/instance-id`
    const get = () => run([...guest!.within, 'curl', '-sSf', '--globoff', '--max-time', '5', url])
    await until(async () => (await get()).status === 0, 'the rules')
    await systemctl('restart', 'imds.service')
    t.match(await get(), { status: 0, stdout: Buffer.from('srv-abcde') }, 'the next daemon has the socket too')
    t.notMatch(await shell(`${IMDSCTL} doctor || true`), /(warning|failure) +addresses /)
    await shell('sed -i s/:80,/:8080,/ /etc/imds/imds.env')
    await shell('cp /units/imds.socket /usr/lib/systemd/system') // /units is no directory of systemd's
    t.match(
      await shell('imdsd --check 2>&1'),
      'IMDS_LISTEN names default=169.254.169.254:8080, and no socket of systemd that is enabled',
    )
    await shell('rm /usr/lib/systemd/system/imds.socket; sed -i "s/:8080,/:80,/" /etc/imds/imds.env')
    await runBlock(executed('docs/install.md', 'listen no longer'))
    t.same(await addresses(), before)
    t.notMatch(await shell('ss -Hltn'), listener)
    const figures = await load.stop()
    t.comment(summary(figures))
    t.same(figures.failed, [])
    await systemctl('disable', 'imds.socket')
    await systemctl('stop', 'imds-firewall.service', 'imds.socket', 'imds.service', 'imds-address.service')
    await shell('nft flush ruleset')
    await setEnv('IMDS_STORE=file:/store')
    await systemctl('start', 'imds.service')
  })

  await t.test('the daemon keeps its compiled code for the next start', async (t) => {
    await systemctl('restart', 'imds.service') // Node writes the cache at the end of the process
    t.match(await shell('find /var/cache/imds -type f -user imds | head -n 1'), '/var/cache/imds/')
  })

  await t.test('a bad configuration is not retried', async (t) => {
    await systemctl('stop', 'imds.service')
    t.match(await show('Result', 'ExecMainStatus'), { Result: 'success', ExecMainStatus: '0' })
    await setEnv('IMDS_STORE=nonsense')
    await t.rejects(systemctl('start', 'imds.service'))
    t.match(await show('SubState', 'ExecMainStatus', 'NRestarts'), {
      SubState: 'failed',
      ExecMainStatus: '78',
      NRestarts: '0',
    })
    t.match(await shell('cat /log'), 'IMDS_STORE must be')
  })

  await t.test('passwords, keys and the certificate of the identity reach the daemon as credentials', async (t) => {
    for (const file of ['redis-password.conf', 'record-keys.conf', 'token-keys.conf', 'identity.conf']) {
      await shell(
        `mkdir -p /units/imds.service.d && cat > /units/imds.service.d/${file}`,
        readFileSync(`${ROOT}deploy/${file}`, 'utf8'),
      )
    }
    await shell(
      'umask 077; echo "k1:$(head -c 32 /dev/urandom | base64)" > /etc/imds/record-keys; head -c 32 /dev/urandom | base64 > /etc/imds/token-keys',
    )
    await shell(
      'mkdir /etc/imds/identity; cd /etc/imds/identity; umask 077; openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -keyout identity-key.pem -out identity-cert.pem 2>/dev/null',
    )
    await shell(
      'umask 077; echo secret > /etc/imds/redis-password; redis-server --requirepass secret --save "" --dir /tmp --daemonize yes',
    )
    await setEnv('IMDS_STORE=redis://127.0.0.1\nIMDS_REGION=gb1\nIMDS_HYPERVISOR=hv1')
    await systemctl('daemon-reload')
    await systemctl('start', 'imds.service')
    await until(
      async () => (await shell('REDISCLI_AUTH=secret redis-cli client list')).includes('name=imds-notices'),
      'the daemon in Redis',
    )
    t.equal((await show('NRestarts'))['NRestarts'], '0')
  })

  await t.test('the shipped defaults of units, imds.env, operator API, firewall, imdsctl fit together', async (t) => {
    const shipped = readFileSync(`${ROOT}deploy/imds.env`, 'utf8').replace(/^IMDS_STORE=.*$/m, 'IMDS_STORE=file:/store')
    const forPrometheus = shipped.replace(/^#(IMDS_OPERATOR_\w+=)/gm, '$1').replace(/^#(IMDS_FIREWALL=)/m, '$1')
    await shell(
      'ip address add 10.1.0.11/32 dev lo; cd /units/imds.service.d; rm record-keys.conf redis-password.conf identity.conf token-keys.conf; systemctl daemon-reload',
    )
    await shell('rm -f /store/*; cat > /store/srv-abcde.json', JSON.stringify(anInstance()))
    for (const [what, env] of [
      ['as shipped', shipped],
      ['with the lines for Prometheus and the firewall', forPrometheus],
    ] as const) {
      await shell('cat > /etc/imds/imds.env', env)
      await systemctl('restart', 'imds.service')
      if (env === forPrometheus) await systemctl('start', 'imds-firewall.service')
      await until(
        async () =>
          (await shell('curl -s --unix-socket /run/imds/operator.sock http://localhost/readyz || true')).includes(
            '"ready":true',
          ),
        `readiness ${what}`,
      )
      t.match(await shell(`${IMDSCTL} wait srv-abcde`), 'is served at revision', what)
      t.match(await shell(`${IMDSCTL} explain 10.0.0.2`), 'metadata (200)', what)
      const asUser = (groups: string) =>
        shell(`setpriv --reuid=65534 --regid=65534 ${groups} ${IMDSCTL} explain 10.0.0.2 2>&1 || true`)
      t.match(await asUser('--groups=imds'), 'metadata (200)', `${what}: a member of the group imds may use the socket`)
      t.match(await asUser('--clear-groups'), 'EACCES: this user may not connect', `${what}: others may not`)
      t.match(await shell(`${IMDSCTL} list`), 'srv-abcde', `${what}: imdsctl uses the store of the daemon`)
    }
    t.equal(await shell('curl -s 10.1.0.11:9169/readyz || true'), '', 'the access list applies to the address')
    t.notMatch(await shell('cat /log'), 'network-not-served')
    await systemctl('stop', 'imds-firewall.service')
    await shell(`${IMDSCTL} firewall --remove`)
    await setEnv('IMDS_STORE=file:/store\nIMDS_LISTEN=169.254.169.254:8080')
    await systemctl('stop', 'imds.service')
    await systemctl('start', 'imds.socket', 'imds.service')
    await until(
      async () => (await shell('cat /log')).includes('IMDS_LISTEN names default=169.254.169.254:8080, and no socket'),
      'the warning',
    )
  })

  await t.test('in the journal each line has its priority, and stays JSON', async (t) => {
    await shell(
      '/usr/lib/systemd/systemd-journald > /dev/null 2>&1 & echo $! > /run/journald; until [ -S /run/systemd/journal/stdout ]; do sleep 0.05; done',
    )
    await host.dropIn('imds.service', '[Service]\nStandardOutput=journal\nStandardError=inherit')
    await setEnv('IMDS_STORE=file:/store\nIMDS_UNKNOWN=1')
    await systemctl('restart', 'imds.service')
    const journal = (options: string) => shell(`journalctl --sync; journalctl --quiet -u imds -o cat ${options}`)
    const messages = async (options: string) =>
      (await journal(options))
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line) as { level: string; msg: string })
    await until(async () => (await journal('')).includes('"msg":"listening"'), 'the line in the journal')
    t.match(await messages('-p warning'), [{ level: 'warn', msg: 'unknown variables are ignored' }])
    t.ok((await messages('-p info..info')).some(({ level, msg }) => level === 'info' && msg === 'listening'))
    const report = await shell(`imdsctl() { ${IMDSCTL} "$@"; }; ${executed('docs/operations/tools.md', 'report')}`)
    t.match(report, /^\d+\.\d+\.\d+\n\{"formatVersion":1,.*"checks":\[.*"msg":"listening"/s, 'what a report has')
    await setEnv('IMDS_STORE=nonsense')
    await t.rejects(systemctl('restart', 'imds.service'))
    t.match(await journal('-p err'), /^imds: the configuration is invalid:\n +IMDS_STORE must be/m)
    await shell('kill $(cat /run/journald)')
    await host.dropIn('imds.service', '')
    await setEnv('IMDS_STORE=file:/store')
  })

  await t.test('the address may exist before its unit starts, and is removed when the unit stops', async (t) => {
    await shell(`systemctl stop imds-address.service; ip address add ${SERVICE}/32 dev lo`)
    await systemctl('start', 'imds-address.service')
    t.match(await shell('ip address show dev lo'), SERVICE)
    await shell(`ip address delete ${SERVICE}/32 dev lo`)
    await until(async () => (await shell('ip address show dev lo')).includes(SERVICE), 'the address to be restored')
    await systemctl('stop', 'imds-address.service')
    t.notMatch(await shell('ip address show dev lo'), SERVICE)
    await host.dropIn('imds-address.service', `[Service]\nEnvironment="ADDRESSES=${SERVICE}/32 fd00:ec2::254/128"`)
    await systemctl('start', 'imds-address.service')
    t.match(
      await shell('ip address show dev lo'),
      new RegExp(`${SERVICE}[^]*fd00:ec2::254`),
      'a drop-in can name several addresses',
    )
    await systemctl('stop', 'imds-address.service')
    t.notMatch(await shell('ip address show dev lo'), /169\.254|fd00/)
  })
})
