/**
 * The commands of docs/install.md, docs/configuration.md and docs/firewall.md, executed as they are on a host that
 * systemd boots: installation, check of the configuration, firewall, upgrade and removal. `npm ci` is left out, since
 * `npm test` has run it.
 */
import { cpSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { until } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { bootBareHost, withoutSystemd } from '../support/netns/booted-host.ts'
import { changedFiles } from '../support/netns/changed-files.ts'
import { SERVICE } from '../support/netns/namespaces.ts'
import { must } from '../support/programs/processes.ts'
import { executed, read, ROOT } from '../tools/documents.ts'
import { shortDirectory } from '../support/test-directory.ts'

const NEXT = '1.0.1'
const LINK = { address: '10.0.0.2/30', gateway: '10.0.0.1', macAddress: '02:24:19:00:00:01', device: 'tap-int-x1y2z' }
const RECORD = anInstance({
  id: 'srv-x1y2z',
  interfaces: [{ id: 'int-x1y2z', macAddress: LINK.macAddress, ipv4Addresses: [LINK.address] }],
})
/** Packs the repository as docs/install.md says, and once more as the next version. Returns both packages. */
async function pack(t: Test): Promise<Record<'present' | 'next', Buffer>> {
  const clone = shortDirectory(t)
  cpSync(ROOT, clone, {
    recursive: true,
    filter: (path) => !['node_modules', '.git', '.tap', 'dist'].includes(path.slice(ROOT.length)),
  })
  symlinkSync(`${ROOT}node_modules`, join(clone, 'node_modules'))
  const run = (command: string) => must(['env', '-u', 'NODE_OPTIONS', 'sh', '-euc', `cd ${clone} && ${command}`])
  await run(executed('docs/install.md', 'build').replace('npm ci && ', ''))
  const present = readFileSync(join(clone, 'imds-1.0.0.tgz'))
  const file = join(clone, 'package.json')
  writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), version: NEXT }))
  await run('rolldown -c && npm pack --ignore-scripts')
  return { present, next: readFileSync(join(clone, `imds-${NEXT}.tgz`)) }
}

t.test('the documented commands install, upgrade and uninstall imds', { skip: withoutSystemd() }, async (t) => {
  const packages = await pack(t)
  const host = await bootBareHost(t, [LINK])
  const {
    guests: [guest],
  } = host
  const found = () => changedFiles(host)
  const users = () => host.shell('cat /etc/passwd /etc/group /etc/shadow /etc/gshadow')
  const [filesBefore, usersBefore] = [await found(), await users()]
  await host.shell(
    'mkdir -p /tmp/packages && base64 --decode > /tmp/packages/imds-1.0.0.tgz',
    packages.present.toString('base64'),
  )
  await host.shell(`base64 --decode > /tmp/packages/imds-${NEXT}.tgz`, packages.next.toString('base64'))

  /** Runs an example in the directory of the packages. The installation by npm, its first line, needs the network. */
  const run = async (code: string) => {
    const [first, ...lines] = code.split('\n')
    const online = first!.startsWith('npm install ') ? first!.replace(/ &&$/, '') : ''
    if (online !== '') await host.shellOnline(`cd /tmp/packages && ${online}`)
    return host.shell(`set -e; cd /tmp/packages; ${online === '' ? code : lines.join('\n')}`)
  }
  const runWithPath = (code: string) => run(`export PATH=/opt/imds/bin:$PATH\n${code}`)
  const metrics = () => host.shell('curl -s 127.0.0.1:9169/metrics')
  const isReady = () =>
    until(
      async () => (await host.shell('curl -s 127.0.0.1:9169/readyz || true')).includes('"ready":true'),
      'the daemon to be ready',
    )
  const id = async () => (await guest!.ask({ path: '/latest/meta-data/instance-id' })).body.toString()

  await t.test('installed: a guest is served', async (t) => {
    const example = executed('docs/install.md', 'install')
    t.match(example, '# then edit it')
    const edit = 'sed -i "s|^IMDS_STORE=.*|IMDS_STORE=file:/srv/imds|" /etc/imds/imds.env'
    const [directory] = /install -d -o imds [^`]*/.exec(read('docs/publishing.md'))!
    t.match(
      await run(example.replace('systemctl daemon-reload', `${edit}; ${directory}; systemctl daemon-reload`)),
      '"ready":',
    )
    await isReady()
    await host.shell('/opt/imds/bin/imdsctl put -', JSON.stringify(RECORD))
    await until(async () => (await id()) === 'srv-x1y2z', 'the instance')
    await runWithPath(executed('docs/configuration.md', 'check'))
    t.match(await host.shell('head -n 1 /opt/imds/share/man/man1/imdsctl.1'), '.TH "IMDSCTL" "1"')
  })

  await t.test('the firewall admits the guest', async (t) => {
    t.match(await runWithPath(executed('docs/firewall.md', 'install')), /table inet imds[^]*counter unknown_peers/)
    t.match(await runWithPath('imdsctl wait srv-x1y2z'), 'srv-x1y2z')
    t.match(await host.shell('nft list set inet imds guests4'), `"${LINK.device}" . ${LINK.macAddress} . 10.0.0.2`)
    t.equal(await id(), 'srv-x1y2z')
  })

  await t.test('the firewall is taken out, and put in again', async (t) => {
    await runWithPath(executed('docs/firewall.md', 'take out'))
    t.notMatch(await host.shell('nft list tables'), 'imds')
    t.equal(await id(), 'srv-x1y2z')
    await runWithPath(executed('docs/firewall.md', 'install'))
    await runWithPath('imdsctl wait srv-x1y2z')
    t.equal(await id(), 'srv-x1y2z')
  })

  await t.test('upgraded: the new version serves the guest', async (t) => {
    t.match(await metrics(), 'imds_build_info{version="1.0.0"')
    await run(executed('docs/install.md', 'upgrade').replace('VERSION', NEXT))
    t.match(await metrics(), `imds_build_info{version="${NEXT}"`)
    t.equal(await runWithPath('imdsctl --version'), `${NEXT}\n`)
    await isReady()
    await runWithPath('imdsctl wait srv-x1y2z')
    t.equal(await id(), 'srv-x1y2z')
  })

  await t.test('uninstalled: nothing stays', async (t) => {
    await run(executed('docs/install.md', 'uninstall'))
    t.same(
      (await found()).filter((path) => !filesBefore.includes(path)),
      [],
    )
    t.equal(await users(), usersBefore)
    t.same(
      await host.shell(
        'systemctl list-units --all --plain --no-legend "imds*"; systemctl list-unit-files --no-legend "imds*" || true',
      ),
      '',
    )
    t.notMatch(await host.shell('nft list tables'), 'imds')
    t.notMatch(await host.shell('ip address show'), SERVICE)
    t.equal(await host.shell('ss --no-header --listening --tcp --udp'), '')
  })
})
