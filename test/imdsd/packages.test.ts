/**
 * The Debian packages on a host that systemd boots: installation, upgrade under load, removal and purge, by the commands
 * of docs/install.md. The host is an overlay of this machine, which has what the packages depend on; with IMDS_TEST_LONG,
 * of a Debian made by debootstrap.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, globSync, mkdirSync, readFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import t, { type Test } from 'tap'
import type { CheckResult } from '../../src/runtime/check.ts'
import { buildImds, buildNode } from '../../deploy/debian/build.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startLoad, summary } from '../support/load/load.ts'
import {
  bootBareHost,
  LINK,
  START_STORES,
  USE_STORES,
  withoutSystemd,
  type BootedHost,
} from '../support/netns/booted-host.ts'
import { changedFiles } from '../support/netns/changed-files.ts'
import { SERVICE } from '../support/netns/namespaces.ts'
import { ENDLESS_SHARE, until } from '../support/programs/daemon.ts'
import { buildInto } from '../support/programs/imds.ts'
import { must } from '../support/programs/processes.ts'
import { executed, read, ROOT } from '../tools/documents.ts'
import { without } from '../support/packages.ts'
import { shortDirectory } from '../support/test-directory.ts'

/** The load asks more than the share of a guest allows. */
const share = Object.entries(ENDLESS_SHARE)
  .map(([name, value]) => `${name}=${value}`)
  .join('\n')
/** With Node.js, lintian takes 40 s of CPU instead of 5 s, and wants a slow compression. */
const IS_LONG = process.env['IMDS_TEST_LONG'] !== undefined
t.setTimeout(900_000) // as under `npm test`: this test builds, and installs Node.js
const ID = '/latest/meta-data/instance-id'
const INSTALL_API = 'apt-get install -y ./imds-api_*.deb ./imdsctl_*.deb ./imds-node_*.deb'

const withoutTools =
  ['dpkg-deb', 'apt-get', 'strip', ...(IS_LONG ? ['debootstrap'] : [])].find(
    (tool) => spawnSync(tool, ['--version']).status !== 0,
  ) ?? false

/** Builds two versions of imds, imdsctl and imds-api, an older one of imds, and imds-node. */
function buildAll(t: Test): Record<'present' | 'next', string[]> & Record<'former' | 'node' | 'dist', string> {
  const directory = shortDirectory(t)
  const dist = join(directory, 'dist')
  mkdirSync(dist)
  buildInto(dist)
  const options = { directory, dist, maintainer: 'imds <imds@imds.invalid>', compression: ['-Zxz', '-z0'] }
  const present = buildImds({ ...options, version: '0.1.0' })
  return {
    dist,
    present,
    former: buildFormer(present, directory),
    next: buildImds({ ...options, version: '0.1.1' }),
    node: buildNode({ ...options, compression: IS_LONG ? ['-Zxz', '-z1'] : ['-Zzstd', '-z1'] }),
  }
}

/**
 * imds as it was when it had imdsctl, and /etc/imds/imds.env was a conffile; with a comment there that is another one now.
 */
function buildFormer([imds, imdsctl]: readonly string[], directory: string): string {
  const [root, file] = [join(directory, 'former'), join(directory, 'former.deb')]
  const { stderr, status } = spawnSync(
    'sh',
    [
      '-euc',
      `dpkg-deb --raw-extract ${imds!} ${root}; dpkg-deb --extract ${imdsctl!} ${root}; cd ${root}
       install -Dm644 usr/share/imds/imds.env etc/imds/imds.env; echo '# older' >> etc/imds/imds.env; rm -r usr/share/imds
       echo /etc/imds/imds.env > DEBIAN/conffiles
       sed -i 's/^Version: .*/Version: 0.0.9/; s/imdsctl (= [^)]*), //' DEBIAN/control
       dpkg-deb --root-owner-group -Zxz -z0 --build . ${file}`,
    ],
    { encoding: 'utf8' },
  )
  if (status !== 0) throw new Error(stderr)
  return file
}

t.test(
  'the Debian packages',
  { skip: withoutTools === false ? withoutSystemd() : `${withoutTools} is missing` },
  async (t) => {
    const built = buildAll(t)
    const host = await bootBareHost(t, [LINK], IS_LONG ? await makeDebian(t) : '/')
    const {
      shell,
      guests: [guest],
    } = host
    const put = (directory: string, file: string) =>
      shell(`mkdir -p ${directory} && base64 --decode > ${directory}/${basename(file)}`, readFileSync(file, 'base64'))
    await shell('rm -rf /var/lib/apt/lists/*') // all that the packages depend on is here, and reading the lists takes long
    for (const file of [...built.present, built.node]) await put('/tmp/present', file)
    await put('/tmp', built.former)
    for (const file of built.next) await put('/tmp/next', file)
    await shell('ln /tmp/present/imds-node_* /tmp/next')
    const run = (code: string, directory = '/tmp/present') =>
      shell(`set -e; export DEBIAN_FRONTEND=noninteractive; cd ${directory}; (${code}\n) 2>&1`)
    const id = async () => (await guest!.ask({ path: ID })).body.toString()
    const pid = async () => (await host.show('MainPID'))['MainPID']
    const filesBefore = await changedFiles(host)
    const install = executed('docs/install.md', 'deb-install')
    const [apt] = install.split('\n') as [string]

    await t.test('the packages and dist/ have the license of each library whose code is in them', (t) => {
      for (const file of built.present) {
        const root = file.replace('.deb', '')
        spawnSync('dpkg-deb', ['--extract', file, root])
        const [name] = basename(file).split('_') as [string]
        checkLicenses(t, `${root}/usr/lib/${name}/dist`, [`${root}/usr/share/doc/${name}/copyright`])
      }
      checkLicenses(t, built.dist, globSync(`${built.dist}/*/licenses.txt`))
      t.match(readFileSync(`${built.dist}/api/licenses.txt`, 'utf8'), '\nswagger-ui\n', 'its files are copied')
      t.end()
    })

    await t.test('lintian finds no error', { skip: without('lintian') }, (t) => {
      const files = [...built.present, ...(IS_LONG ? [built.node] : [])]
      const env = { ...process.env, TMPDIR: shortDirectory(t) } // it leaves files there
      const options = ['--allow-root', '--display-level=error']
      const { stdout } = spawnSync('lintian', [...options, ...files], { encoding: 'utf8', env })
      t.equal(stdout, '')
      t.end()
    })

    await t.test('imds.env of a package that had it as a conffile: an upgrade asks nothing and keeps it', async (t) => {
      await run('dpkg --install /tmp/former.deb ./imds-node_*.deb; echo "# mine" >> /etc/imds/imds.env')
      const before = await shell('cat /etc/imds/imds.env')
      await run(apt)
      t.equal(await shell('cat /etc/imds/imds.env'), before)
      await run('dpkg --purge imds imdsctl')
      await shell('test ! -e /etc/imds')
    })

    await t.test('imds-api brings imdsctl and the documents of its unit, and no daemon and no address', async (t) => {
      await run(INSTALL_API)
      t.match(await shell('imdsctl --version'), /^\d+\.\d+\.\d+\n$/)
      t.notMatch(await shell('dpkg-query --show'), /^imds\t/m)
      t.notMatch(await shell('ip address show'), SERVICE)
      await checkFilesOfUnits(t, host)
      for (const example of ['alerts.yml', 'haproxy.cfg', 'api-database-password.conf'])
        await shell(`test -s /usr/share/doc/imds/examples/${example}`)
      await run('dpkg --remove imds-api')
    })

    await t.test('installed without a configuration: nothing runs, and the faults are named', async (t) => {
      const output = await run(apt)
      t.match(output, /IMDS_STORE is not set[^]*imds is not \(re\)started/)
      t.equal(await shell('ss --no-header --listening --tcp --udp'), '')
      await shell('cmp /etc/imds/imds.env /usr/share/imds/imds.env')
      await checkFilesOfUnits(t, host)
    })

    await t.test('each package has the man pages and the completion of its programs', async (t) => {
      const files = await shell(
        'for file in imds imdsctl imds-api; do dpkg-deb --contents /tmp/present/${file}_*.deb; done',
      )
      const found = [...files.matchAll(/usr\/share\/(.*(?:man|complet).*\/[^/\n]*imds[^/\n]*)$/gm)].map(
        ([, path]) => path!,
      )
      t.same(found.sort(), [
        'bash-completion/completions/imds-api',
        'bash-completion/completions/imdsctl',
        'bash-completion/completions/imdsd',
        'man/man1/imdsctl.1.gz',
        'man/man5/imds-api.env.5.gz',
        'man/man5/imds.env.5.gz',
        'man/man8/imds-api.8.gz',
        'man/man8/imdsd.8.gz',
      ])
    })

    await t.test('configured: a guest is served', async (t) => {
      t.match(
        await run(
          install
            .replace(
              /^editor .*$/m,
              `cat > /etc/imds/imds.env <<'EOF'\nIMDS_STORE=file:/srv/imds\n${share}\nEOF\ninstall -d -o imds -g imds /srv/imds`,
            )
            .replace(apt, ''),
        ),
        '',
      )
      await shell('imdsctl put -', JSON.stringify(anInstance()))
      await until(async () => (await id()) === 'srv-abcde', 'the instance')
      t.equal(await shell('systemctl is-active imds-address imds.socket imds'), 'active\n'.repeat(3))
      t.match(await run('imdsd --check'), 'files checked as user imds')
    })

    await t.test('doctor finds every unit sound; what it finds broken, its remedies repair', async (t) => {
      /** What doctor finds of units and addresses. */
      const doctor = async () => {
        const { checks } = JSON.parse(await shell('imdsctl --json doctor || [ $? -le 2 ]')) as {
          checks: readonly CheckResult[]
        }
        return checks.filter(({ code }) => ['units', 'address-missing'].includes(code))
      }
      const lines = (found: readonly CheckResult[]) => found.map(({ severity, text }) => `${severity} ${text}`)
      const sound = ['imds.service', 'imds.socket', 'imds-address.service'].map((unit) => `ok ${unit} runs`)
      /** The daemon looks for its addresses every 2 s. */
      const finds = async (expected: readonly string[], isSought: (check: CheckResult) => boolean, name: string) => {
        let found: readonly CheckResult[] = []
        for (let looks = 0; looks < 10 && lines(found).join() !== expected.join(); looks++)
          found = (await doctor()).filter(isSought)
        t.same(lines(found), expected, name)
        return found
      }
      await finds(sound, () => true, 'sound at first')
      for (const [breakIt, expected] of [
        [
          'systemctl disable imds.socket imds.service; systemctl stop imds-address.service',
          [
            `failure no guest can reach imds at ${SERVICE}, since no interface of this hypervisor has that address`,
            'warning imds.service runs and is not enabled: it does not start at boot',
            'warning imds.socket runs and is not enabled: it does not start at boot',
            'warning imds-address.service does not run (inactive)',
          ],
        ],
        ['systemctl stop imds.socket', ['warning imds.socket does not run (inactive)']],
        ['systemctl disable imds.socket; systemctl stop imds.socket', ['warning imds.socket does not run (inactive)']],
        [
          'systemctl mask imds.socket imds.service; systemctl stop imds.service imds.socket',
          ['failure imds.service is masked, so it cannot start', 'warning imds.socket is masked, so it cannot start'],
        ],
      ] as const) {
        await run(breakIt)
        const found = await finds(expected, ({ severity }) => severity !== 'ok', `found after: ${breakIt}`)
        const remedies = found.flatMap((one) =>
          one.code === 'units' && one.severity !== 'ok' ? [one.remedy.split(', then ')] : [],
        )
        for (const step of remedies.flat()) if (!step.startsWith('see ')) await run(step)
        await finds(sound, () => true, `repaired after: ${breakIt}`)
      }
      await run('systemctl mask --now imds-address.service')
      t.match(await shell('imdsctl doctor || true'), 'imds-address.service is masked: the address comes from elsewhere')
      await run('systemctl unmask imds-address.service; systemctl start imds-address.service')
      t.equal(await id(), 'srv-abcde')
    })

    await t.test('G3: upgrades of imds and of Node.js under load fail no request', async (t) => {
      const pids = [await pid()]
      const loads = await Promise.all([true, false].map((keepAlive) => startLoad(guest!, { clients: 4, keepAlive })))
      for (const [command, directory] of [
        [apt, '/tmp/next'],
        ['dpkg --install ./imds-node_*.deb', '/tmp/present'],
      ]) {
        await run(command!, directory)
        await Promise.all(loads.map((load) => load.more(100)))
        pids.push(await pid())
      }
      for (const load of loads) {
        const figures = await load.stop()
        t.comment(summary(figures))
        t.same(figures.failed, [])
        t.same(figures.answers[ID], ['srv-abcde'])
      }
      t.equal(new Set(pids).size, 3, 'both have restarted the daemon')
      t.equal(await shell("dpkg-query --show --showformat='${Version}' imds"), '0.1.1')
      t.match(await shell('cat /etc/imds/imds.env'), 'file:/srv/imds', 'the configuration survives')
    })

    await t.test('an upgrade under an invalid configuration leaves the daemon running', async (t) => {
      const before = await pid()
      await shell('sed -i s/file:/nonsense:/ /etc/imds/imds.env')
      t.match(await run('dpkg --install ./imds_*.deb', '/tmp/next'), /IMDS_STORE[^]*imds is not \(re\)started/)
      t.equal(await pid(), before)
      t.equal(await id(), 'srv-abcde')
      await shell('sed -i s/nonsense:/file:/ /etc/imds/imds.env')
    })

    await t.test('removed: nothing runs, and the state stays; installed again: a guest is served', async (t) => {
      await shell(`printf 'IMDS_FIREWALL=required\\n' >> /etc/imds/imds.env`)
      await host.dropIn('imds.service', '[Service]\nExecStopPost=+/bin/sh -c "nft list tables > /tables-at-stop"')
      await run('systemctl restart imds; systemctl start imds-firewall')
      await until(async () => (await shell('nft list tables')).includes('inet imds'), 'the rules')
      await run('dpkg --remove imds')
      t.match(await shell('cat /tables-at-stop'), 'inet imds', 'the rules are there until the daemon has stopped')
      t.equal(await shell('nft list tables'), '')
      await shell('rm -r /etc/systemd/system/imds.service.d /tables-at-stop; sed -i /^IMDS_FI/d /etc/imds/imds.env')
      t.equal(await shell('ss --no-header --listening --tcp --udp'), '')
      t.notMatch(await shell('ip address show'), SERVICE)
      t.match(await shell('ls /var/lib/imds'), 'token')
      t.match(await run('! dpkg --install ./imds_*.deb'), /imds depends on imdsctl \(= 0\.1\.0\)/, 'no mix of versions')
      await run('dpkg --install ./imds_*.deb ./imdsctl_*.deb')
      t.equal(await id(), 'srv-abcde')
    })

    await t.test(
      'imds-api with Redis and PostgreSQL of Debian: a new server reaches its guest, also after an upgrade',
      { skip: withoutStores(host) },
      async (t) => {
        await shell(START_STORES)
        await shell(
          'cat > /tmp/region.yaml',
          read('deploy/region.example.yaml')
            .replace(/private_ipv4: .*/, 'private_ipv4: [10.0.0.2-10.0.0.2]')
            .replace('10.240.0.0/16: 2001', '10.0.0.2-10.0.0.2: 2001'),
        )
        const edits = [
          USE_STORES,
          '(umask 077; echo secret-of-the-client > /etc/imds/provisioning.secret); cp /tmp/region.yaml /etc/imds',
        ]
        await shell('mkdir /tmp/api; cd /tmp; ln present/imds-api_* present/imdsctl_* present/imds-node_* api')
        t.match(
          await run(
            [INSTALL_API, ...edits, 'imds-api apply /etc/imds/region.yaml', 'systemctl start imds-api'].join('\n'),
            '/tmp/api',
          ),
          '+ zone zon-remk1',
        )
        await shell(
          'cat > /etc/imds/imds.env; systemctl restart imds',
          `IMDS_STORE=redis://127.0.0.1:6379\nIMDS_REGION=gb1\nIMDS_HYPERVISOR=hv1\n${share}\n`,
        )
        const isReady = async () => (await shell('curl -s 127.0.0.1:9170/readyz || true')).includes('"ready":true')
        await until(isReady, 'imds-api to be ready')
        const { access_token: token } = JSON.parse(
          await shell(
            'curl -s -u cli-3d0kz:secret-of-the-client -d grant_type=client_credentials 127.0.0.1:8170/token',
          ),
        ) as { access_token: string }
        /** Sends a request to the API, by default a GET. Returns the resource. */
        const api = async (path: string, ...options: string[]) =>
          JSON.parse(
            await shell(
              `curl -s -H 'Authorization: Bearer ${token}' -H 'Content-Type: application/json' ${options.join(' ')} 127.0.0.1:8170/1.0/${path}`,
            ),
          ) as { id: string; fqdn: string }
        const server = await api('servers', `-d '{"image": "debian-12", "zone": "gb1-a", "name": "one"}'`)
        await until(async () => (await id()) === server.id, 'the guest to read the id of its server')
        t.match(await run('imds-api reconcile --dry-run'), '1 servers: 0 differ in the store')
        t.match(await run('imds-api hypervisors'), /^hv1 +gb1-a +1 .*ago$/m)
        t.match(await run('imds-api reconcile'), /^1 servers: 0 differ/)

        await run('dpkg --install ./imds_*.deb ./imds-api_*.deb ./imdsctl_*.deb', '/tmp/next')
        await until(isReady, 'imds-api to be ready after the upgrade')
        t.equal(await shell("dpkg-query --show --showformat='${Version}' imds-api"), '0.1.1')
        const group = await api('server_groups', `-d '{"name": "after the upgrade"}'`)
        await api(`server_groups/${group.id}/add_servers`, `-d '{"servers": [{"server": "${server.id}"}]}'`)
        const groups = async () =>
          (await guest!.ask({ path: '/latest/meta-data/security-groups' })).body.toString().split('\n')
        await until(async () => (await groups()).includes('after the upgrade'), 'the guest to read its new group')

        await run('dpkg --remove imds-api')
        t.equal(await shell('systemctl is-active imds-api || true'), 'inactive\n')
        t.equal(await id(), server.id, 'the daemon serves on')
        const output = await run('dpkg --purge imds-api')
        const left = ['/etc/imds/provisioning.secret', '/etc/imds/region.yaml']
        for (const file of ['/etc/imds/imds.env', ...left]) {
          t.match(output, new RegExp(`left: ${file}\r?\n`))
          await shell(`test -e ${file}`)
        }
        await shell(`test ! -e /etc/imds/imds-api.env; rm ${left.join(' ')}`)
        await shell(
          'kill $(cat /srv/postgresql/redis.pid); setpriv --reuid nobody --clear-groups /usr/lib/postgresql/15/bin/pg_ctl --pgdata=/srv/postgresql/data --mode=immediate stop',
        )
      },
    )

    await t.test('purged while a process of the user runs: what packages made goes, the rest is named', async (t) => {
      const left = ['/etc/imds/record-keys', '/etc/systemd/system/imds.service.d/record-keys.conf']
      for (const file of left) await shell(`install -D /dev/null ${file}`)
      await shell('setpriv --reuid imds --clear-groups sleep infinity > /dev/null 2>&1 & echo $! > /tmp/sleep')
      const output = await run(executed('docs/install.md', 'deb-purge'))
      for (const file of left) {
        t.match(output, new RegExp(`left: ${file}\r?\n`))
        await shell(`rm ${file} && rmdir --ignore-fail-on-non-empty $(dirname ${file})`)
      }
      await shell('kill $(cat /tmp/sleep); getent passwd imds')
      t.same(
        (await changedFiles(host)).filter((path) => !filesBefore.includes(path)),
        [],
      )
      t.equal(await shell('ss --no-header --listening --tcp --udp'), '')
      t.notMatch(await shell('ip address show'), SERVICE)
    })
  },
)

/** Checks that texts name each library of which the programs in a directory have code, with its copyright. */
function checkLicenses(t: Test, directory: string, files: readonly string[]): void {
  const text = `\n${files.map((file) => readFileSync(file, 'utf8')).join('\n')}`
  // The bundler writes such a line before the code of each file.
  const origin = /^\s*\/\/(?:#region)? (\S*node_modules\/(?:@[^/\s]+\/)?[^/\s]+)\//gm
  const libraries = new Set(
    globSync(`${directory}/*/*.js`).flatMap((file) =>
      [...readFileSync(file, 'utf8').matchAll(origin)].map(([, path]) => join(ROOT, path!)),
    ),
  )
  t.ok(libraries.size > 10, `${directory} has code of libraries`)
  for (const path of libraries) {
    const { name, version } = JSON.parse(readFileSync(join(path, 'package.json'), 'utf8')) as Record<string, string>
    t.ok(text.includes(`\n${name!} ${version!}\n\n`), `${name!} ${version!}`)
    for (const license of globSync('{LICENSE,license}*', { cwd: path }))
      for (const [line] of readFileSync(join(path, license), 'utf8').matchAll(/^ *copyright \D{0,6}\d{4}.*$/gim))
        t.ok(text.includes(line.trim()), `${name!}: ${line}`)
  }
}

/** Checks that the programs and documents that the installed units name are there. */
async function checkFilesOfUnits(t: Test, { shell }: BootedHost): Promise<void> {
  const named = await shell(
    "grep --no-filename --only-matching '/usr/\\(share/doc\\|lib\\)/imds[^ ]*' /usr/lib/systemd/system/imds*",
  )
  for (const file of new Set(named.trim().split('\n'))) await shell(`test -s ${file}`)
  t.match(named, '/usr/share/doc/imds/docs/install.md')
}

/** A minimal Debian made by debootstrap, with what the packages and this test need, from the mirror of this machine. */
async function makeDebian(t: Test): Promise<string> {
  const directory = shortDirectory(t)
  const [line] = (await must(['apt-get', 'indextargets', '--format', '$(SITE) $(CODENAME)'])).toString().split('\n')
  const [mirror, release] = line!.split(' ') as [string, string]
  const include = 'curl,init-system-helpers,iproute2,libatomic1,nftables,systemd,systemd-sysv'
  await must(['debootstrap', '--variant=minbase', `--include=${include}`, release, directory, mirror])
  return directory
}

function withoutStores({ files }: BootedHost): string | false {
  const missing = ['lib/postgresql/15/bin/postgres', 'bin/redis-server'].filter(
    (file) => !existsSync(join(files, 'usr', file)),
  )
  return missing.length > 0 && `missing on the host: ${missing.join(', ')}`
}
