/**
 * The firewall agent maintains its rules when others change them or nft fails, and imdsctl prints, applies and removes
 * them.
 */
import { once } from 'node:events'
import { chmodSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t, { type Test } from 'tap'
import { parseUnixSocket } from '../../src/runtime/host-port.ts'
import { until } from '../support/programs/daemon.ts'
import { curl, startFirewallHost, type FirewallHost, type Outcome } from '../support/netns/firewall-host.ts'
import { must, run, startChild } from '../support/programs/processes.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { shortDirectory, testDirectory } from '../support/test-directory.ts'

const skip = withoutNamespaces()

t.test('while an agent runs', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const alpha = await host.addGuest('alpha')
  const firewall = await host.startFirewall()
  await host.putAndWait(alpha)

  await t.test('the agent restores rules that another program changed', async (t) => {
    /** The table without the version of the document, which may change. */
    const table = async () =>
      (await run([...host.hypervisor.within, 'nft', '--stateless', 'list', 'table', 'inet', 'imds'])).stdout
        .toString()
        .replace(/comment ".*"/, '')
        .split(/[\s,]+/)
        .sort()
        .join(' ')
    const whole = await table()
    const changes = [
      'flush ruleset',
      'delete table inet imds',
      'flush set inet imds guests4',
      'flush chain inet imds unknown_peer',
      'flush chain inet imds output',
      'add element inet imds guests4 { "evil" . 02:00:00:00:00:01 . 10.9.9.9 . 169.254.169.254 . 80 }',
      'insert rule inet imds prerouting accept',
    ]
    for (const change of changes) {
      await host.nft(change)
      await until(async () => (await table()) === whole, change, 15_000)
      t.equal(await curl(alpha), 200)
    }
    // a change that new rules have replaced at the same time is not printed
    t.match(
      firewall.output(),
      /^.*: 0 interfaces are admitted\n(imdsctl: another program changed the rules; they are restored \(firewall-restored\)\n)+$/,
    )
  })

  await t.test('the agent restores a table that is gone while an instance keeps changing', async (t) => {
    const bravo = await host.addGuest('bravo')
    await host.putAndWait(bravo)
    await must([...alpha.within, 'ip', 'address', 'add', `${bravo.address}/32`, 'dev', 'eth0'])
    await host.nft('flush ruleset')
    const isThere = async () =>
      (await run([...host.hypervisor.within, 'nft', 'list', 'table', 'inet', 'imds'])).status === 0
    await until(async () => {
      await host.put(bravo, { fqdn: `${Date.now()}.example.com` })
      return isThere()
    }, 'the table')
    t.equal(await curl(alpha, ['--interface', bravo.address]), 'no response')
    await must([...alpha.within, 'ip', 'address', 'delete', `${bravo.address}/32`, 'dev', 'eth0'])
  })

  await t.test('a restarted daemon with an empty view does not make the agent remove any rules', async (t) => {
    const outcomes = new Set<Outcome>()
    const during = { test: true, restart: true }
    const requests = (async () => {
      while (during.test) outcomes.add(await curl(alpha, ['--max-time', '20']))
    })()
    const isLetIn = async () => (await host.nft('list set inet imds guests4')).includes('"tap-int-alpha"')
    const checks = (async () => {
      while (during.restart) t.ok(await isLetIn())
    })()
    await host.restartDaemon()
    t.match(await host.imdsctl('wait', 'srv-alpha', '--revision', '1'), { status: 0 })
    during.restart = false
    await checks
    t.equal(await curl(alpha), 200)
    during.test = false
    await requests
    t.same(
      [...outcomes].filter((what) => what !== 200 && what !== 503 && what !== 'refused'),
      [],
    )
    t.match(
      firewall.output(),
      /the daemon at unix:\S+\/operator.sock cannot be reached: .*: the rules stay as they are, trying again \(firewall-not-applied\)\n/,
    )
  })

  await t.test('SIGHUP stops imdsctl firewall --watch in order', async (t) => {
    firewall.process.kill('SIGHUP')
    await once(firewall.process, 'exit')
    t.equal(firewall.process.exitCode, 0)
  })
})

t.test(
  'the agent reports rules that nft rejects, retries them and keeps the old ones meanwhile',
  { skip },
  async (t) => {
    const host = await startFirewallHost(t)
    const [alpha, bravo] = [await host.addGuest('alpha'), await host.addGuest('bravo')]
    const directory = testDirectory(t, {
      nft: '#!/bin/sh\nif [ "$1" = -f ] && [ -e "$(dirname "$0")/fail" ]; then echo "Error: no space left" >&2; exit 1; fi\nexec /usr/sbin/nft "$@"\n',
    })
    chmodSync(join(directory, 'nft'), 0o755)
    const firewall = await host.startFirewall({ PATH: `${directory}:${process.env['PATH']!}` })
    await host.putAndWait(alpha)
    writeFileSync(join(directory, 'fail'), '')
    const revision = String(await host.put(bravo))
    t.match(await host.imdsctl('wait', 'srv-bravo', '--revision', revision, '--timeout', '3'), {
      status: 75,
      stderr: /the firewall has not admitted the guest yet: nft: Error: no space left/,
    })
    t.match(JSON.parse(await host.operator('/readyz')), {
      firewall: { applied: false, failed: 'nft: Error: no space left' },
    })
    t.match(
      firewall.output(),
      /imdsctl: nft: Error: no space left: the rules stay as they are, trying again \(firewall-not-applied\)\n$/,
    )
    t.same([await curl(alpha), await curl(bravo)], [200, 'refused'])
    rmSync(join(directory, 'fail'))
    t.match(await host.imdsctl('wait', 'srv-bravo', '--revision', revision), { status: 0 })
    t.equal(await curl(bravo), 200)
    await until(
      () => firewall.output().endsWith('imdsctl: the rules follow the daemon again\n'),
      'the message about the recovery',
    )
  },
)

t.test('a daemon that cannot use any record offers no view, and the agent keeps the rules', { skip }, async (t) => {
  const env: Record<string, string> = { IMDS_RESYNC_SECONDS: '1' }
  const host = await startFirewallHost(t, env)
  const alpha = await host.addGuest('alpha')
  const firewall = await host.startFirewall()
  const revision = await host.putAndWait(alpha)
  const published = await host.store.get('srv-alpha')
  t.match(
    await host.store.put({ ...(published!.document as object), revision: revision + 1 }, Buffer.from('ten bytes.')),
    { kind: 'published' },
  )
  const rules = () => host.nft('list set inet imds guests4')
  const before = await rules()
  t.match(before, '"tap-int-alpha"')
  const ready = async () => JSON.parse(await host.operator('/readyz')) as { ready: boolean; faulty: number }

  env['IMDS_USER_DATA_MAX_BYTES'] = '1'
  await host.restartDaemon()
  await until(async () => (await ready()).faulty === 1, 'the fault')
  await until(
    () =>
      firewall
        .output()
        .endsWith(
          'imdsctl: the daemon has no complete view yet: the rules stay as they are, trying again (firewall-not-applied)\n',
        ),
    'the agent to report that there is no view',
  )
  t.match(await ready(), { ready: false, conditions: [{ text: /^1 of 1 records/ }] })
  t.match(await host.imdsctl('wait', 'srv-alpha', '--revision', String(revision), '--timeout', '1'), { status: 75 })
  t.equal(await rules(), before)
  t.equal(await curl(alpha), 503)

  delete env['IMDS_USER_DATA_MAX_BYTES']
  await host.restartDaemon()
  t.match(await host.imdsctl('wait', 'srv-alpha', '--revision', String(revision + 1)), { status: 0 })
  t.equal(await curl(alpha), 200)
})

t.test('without a running agent', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const alpha = await host.addGuest('alpha')
  await host.put(alpha)
  await until(async () => (await host.operator('/instances/srv-alpha')).includes('"revision":1'), 'the record')

  await t.test('imdsctl firewall prints the rules, applies them once and removes them', async (t) => {
    const printed = await host.imdsctl('firewall')
    t.match(printed, { status: 0, stderr: '' })
    t.match(printed.stdout, '"tap-int-alpha" . 02:24:19:00:01:01 . 10.88.1.2 . 169.254.169.254 . 80')
    await must([...host.hypervisor.within, 'nft', '-c', '-f', '-'], { input: printed.stdout })
    t.equal(
      (await run([...host.hypervisor.within, 'nft', 'list', 'table', 'inet', 'imds'])).status,
      1,
      'printing applies nothing',
    )
    t.match(await host.imdsctl('firewall', '--apply'), { status: 0, stderr: '' })
    t.same([await curl(alpha), await curl(host.hypervisor)], [503, 'refused'], 'no agent confirms the rules')
    t.match(
      await host.imdsctl('wait', 'srv-alpha', '--revision', '1', '--timeout', '2'),
      { status: 75 },
      'without a running agent, wait does not rely on the applied rules',
    )
    for (let i = 0; i < 2; i++) t.match(await host.imdsctl('firewall', '--remove'), { status: 0, stderr: '' })
    t.equal(await curl(host.hypervisor), 503)
    t.match(await host.imdsctl('firewall', '--watch'), { status: 64 })
    t.match(await host.imdsctl('firewall', '--apply', '--operator', 'unix:/nowhere/operator.sock'), {
      status: 69,
      stderr: /the daemon at unix:\/nowhere\/operator.sock cannot be reached: ENOENT/,
    })
    t.match(await host.imdsctl('firewall', '--operator', '127.0.0.1:1'), {
      status: 64,
      stderr: /on the daemon's unix socket only/,
    })
  })

  await t.test('D6: imdsctl firewall changes no rules if the document of the daemon has a wrong shape', async (t) => {
    t.match(await host.imdsctl('firewall', '--apply'), { status: 0 })
    const rules = await host.nft('--stateless', 'list table inet imds')
    const wrong = { ...(await documentOf(host)), limitedDscp: undefined, guests: [] }
    const operator = await startOtherDaemon(t, host, join(mkdtempIn(t), 'operator.sock'), wrong)
    t.match(await host.imdsctl('firewall', '--apply', '--operator', operator), {
      status: 69,
      stderr: /a document that this version cannot read/,
    })
    t.equal(await host.nft('--stateless', 'list table inet imds'), rules)
    t.equal(await curl(alpha), 503)
  })

  await t.test('the agent admits no listener and no link rule that its own configuration does not have', async (t) => {
    t.match(await host.imdsctl('firewall', '--apply'), { status: 0 })
    const document = await documentOf(host)
    const rules = await host.nft('--stateless', 'list table inet imds')
    const socket = join(mkdtempIn(t), 'operator.sock')
    const [own] = document['listeners'] as [Record<string, unknown>]
    const listeners = [own, { network: 'default', address: '10.77.0.1', port: 22 }]
    const daemon = await startOtherDaemon(t, host, socket, { ...document, version: 'f.1', listeners })
    const fault =
      'the daemon has the listener 10.77.0.1:22, and IMDS_LISTEN of the firewall agent is 169.254.169.254:80'
    const { status, stderr } = await host.imdsctl('firewall', '--apply', '--operator', daemon)
    t.equal(status, 65)
    t.match(stderr, fault)
    t.match(stderr, 'restart imds and imds-firewall')
    const watching = await host.startFirewall({ IMDS_OPERATOR_SOCKET: socket })
    await until(() => watching.output().includes(fault), 'the agent to name the fault')
    await watching.stop()
    t.equal(watching.output().split('\n').length, 2, 'in one line')
    t.equal(await host.nft('--stateless', 'list table inet imds'), rules)

    await t.test('and trusts no socket that other users can make', async (t) => {
      chmodSync(dirname(socket), 0o777)
      const { status, stderr } = await host.imdsctl('firewall', '--apply', '--operator', daemon)
      t.equal(status, 69)
      t.match(stderr, /is not trusted: other users than its owner can change the directory \S+ \(mode 777\)/)
      t.equal(await host.nft('--stateless', 'list table inet imds'), rules)
    })
    t.equal(await curl(alpha), 503)
  })
})

/** The daemon's document for the firewall. */
async function documentOf(host: FirewallHost): Promise<Record<string, unknown>> {
  const { path } = parseUnixSocket(host.operatorSocket)!
  return JSON.parse(
    (await must(['curl', '-s', '--unix-socket', path, 'http://localhost/firewall'])).toString(),
  ) as Record<string, unknown>
}

/**
 * Starts a program that answers every request on a unix socket with a document. Returns its socket, as `--operator`
 * takes it.
 */
async function startOtherDaemon(t: Test, host: FirewallHost, path: string, document: object): Promise<string> {
  const daemon = await startChild([
    ...host.hypervisor.within,
    process.execPath,
    '-e',
    `
    require('node:fs').rmSync(process.argv[1], { force: true })
    require('node:http').createServer((request, response) => response.end(process.argv[2])).listen(process.argv[1], () => console.log('up'))
    process.stdin.on('end', () => process.exit()).resume()`,
    path,
    JSON.stringify(document),
  ])
  t.teardown(() => daemon.stop())
  return `unix:${path}`
}

/** A temporary directory with a short path, for a unix socket. */
function mkdtempIn(t: Test): string {
  const directory = shortDirectory(t)
  return directory
}
