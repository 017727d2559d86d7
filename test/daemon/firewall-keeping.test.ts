/**
 * The firewall agent keeps its rules in place whatever others or nft do, and imdsctl prints, applies and removes them.
 */
import { chmodSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { until } from '../support/programs/daemon.ts'
import { meet, OPERATOR, startFirewallHost, type Met } from '../support/netns/firewall-host.ts'
import { must, run, startHeld } from '../support/programs/processes.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { IMDSCTL } from '../support/programs/imds.ts'

const skip = withoutNamespaces()

t.test('rules that somebody changes are restored', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const alpha = await host.addGuest('alpha')
  const firewall = await host.startFirewall()
  await host.letIn(alpha)
  const whole = (await host.nft('--stateless', 'list table inet imds')).split(/[\s,]+/).sort().join(' ')
  const changes = ['flush ruleset', 'delete table inet imds', 'flush set inet imds guests4', 'flush chain inet imds unknown_peer', 'add element inet imds guests4 { "evil" . 02:00:00:00:00:01 . 10.9.9.9 . 169.254.169.254 . 80 }', 'insert rule inet imds prerouting accept']
  for (const [i, change] of changes.entries()) {
    await host.nft(change)
    await until(async () => (await run([...host.hypervisor.within, 'nft', '--stateless', 'list', 'table', 'inet', 'imds'])).stdout.toString().split(/[\s,]+/).sort().join(' ') === whole, change, 15_000)
    t.equal(await meet(alpha), 200)
    const told = `: 0 interfaces are let in\n${'imdsctl: somebody changed the rules: they are put back\n'.repeat(i + 1)}`
    await until(() => firewall.said().endsWith(told), `${change}: to be told`)
  }
})

t.test('rules that nft rejects are reported with its message and retried while the old ones stay', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const [alpha, bravo] = [await host.addGuest('alpha'), await host.addGuest('bravo')]
  const directory = t.testdir({ nft: '#!/bin/sh\nif [ -e "$(dirname "$0")/fail" ]; then echo "Error: no space left" >&2; exit 1; fi\nexec /usr/sbin/nft "$@"\n' })
  chmodSync(join(directory, 'nft'), 0o755)
  const firewall = await host.startFirewall({ PATH: `${directory}:${process.env['PATH']!}` })
  await host.letIn(alpha)
  writeFileSync(join(directory, 'fail'), '')
  const revision = String(await host.put(bravo))
  t.match(await host.imdsctl('wait', 'srv-bravo', '--revision', revision, '--timeout', '3'), { status: 75, stderr: /the firewall has not let it in yet/ })
  t.match(firewall.said(), /imdsctl: nft: Error: no space left: the rules stay as they are, trying again\n$/)
  t.same([await meet(alpha), await meet(bravo)], [200, 'refused'])
  rmSync(join(directory, 'fail'))
  t.match(await host.imdsctl('wait', 'srv-bravo', '--revision', revision), { status: 0 })
  t.equal(await meet(bravo), 200)
  await until(() => firewall.said().endsWith('imdsctl: the rules follow the daemon again\n'), 'the recovery to be told')
})

t.test('an interface that nft rejects is left out, and the rules of the others do not wait for it', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const [alpha, bad, charlie] = [await host.addGuest('alpha'), await host.addGuest('bad'), await host.addGuest('charlie')]
  const directory = t.testdir({ nft: `#!/bin/sh
case "$*" in *list*) exec /usr/sbin/nft "$@" ;; esac
text=$(mktemp) && cat > $text
if [ ! -e "$(dirname "$0")/mended" ] && grep -q ${bad.macAddress} $text; then echo "/dev/stdin:1:2-3: Error: no such thing" >&2; rm $text; exit 1; fi
/usr/sbin/nft "$@" < $text; status=$?; rm $text; exit $status
` })
  chmodSync(join(directory, 'nft'), 0o755)
  const env = { PATH: `${directory}:${process.env['PATH']!}` }
  const firewall = await host.startFirewall(env)
  await host.letIn(alpha)
  const revision = String(await host.put(bad))
  await host.letIn(charlie)
  t.same([await meet(alpha), await meet(bad), await meet(charlie)], [200, 'refused', 200])
  t.match(firewall.said(), /^imdsctl: left out: srv-bad: interface int-bad: nft: Error: no such thing$/m)
  const reason = 'the firewall keeps interface int-bad out: nft: Error: no such thing'
  t.match(await host.imdsctl('wait', 'srv-bad', '--revision', revision, '--timeout', '2'), { status: 75, stderr: reason })
  t.match(JSON.parse(await host.operator('/readyz')), { firewall: { applied: true, refused: 1 } })
  t.match(await host.operator('/metrics'), /^imds_firewall_refused_interfaces 1$/m)
  t.match(JSON.parse((await host.imdsctl('explain', bad.address, '--json')).stdout.toString()), { firewall: reason })

  await t.test('also if the rules are applied once, by hand', async (t) => {
    await firewall.stop()
    await host.imdsctl('firewall', '--remove')
    const { status, stderr } = await run([...host.hypervisor.within, process.execPath, IMDSCTL, 'firewall', '--apply', '--operator', OPERATOR], { env })
    t.equal(status, 65)
    t.match(stderr, /srv-bad: interface int-bad: nft: Error: no such thing/)
    t.same([await meet(alpha), await meet(bad), await meet(charlie)], [200, 'refused', 200])
  })

  await t.test('the interface is let in soon after nft accepts it', async (t) => {
    await host.startFirewall(env)
    t.match(await host.imdsctl('wait', 'srv-charlie', '--revision', '1'), { status: 0 })
    t.equal(await meet(bad), 'refused')
    writeFileSync(join(directory, 'mended'), '')
    t.match(await host.imdsctl('wait', 'srv-bad', '--revision', revision, '--timeout', '30'), { status: 0 })
    t.equal(await meet(bad), 200)
    t.match(await host.operator('/metrics'), /^imds_firewall_refused_interfaces 0$/m)
  })
})

t.test('a restarted daemon with an empty view does not remove any rules', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const alpha = await host.addGuest('alpha')
  const firewall = await host.startFirewall()
  await host.letIn(alpha)
  const met = new Set<Met>()
  const during = { all: true, restart: true }
  const asking = (async () => { while (during.all) met.add(await meet(alpha, ['--max-time', '20'])) })()
  for (let i = 0; i < 3; i++) {
    const isLetIn = async () => (await host.nft('list set inet imds guests4')).includes('"tap-int-alpha"')
    during.restart = true
    const looking = (async () => { while (during.restart) t.ok(await isLetIn()) })()
    await host.restartDaemon()
    t.match(await host.imdsctl('wait', 'srv-alpha', '--revision', '1'), { status: 0 })
    during.restart = false
    await looking
    t.equal(await meet(alpha), 200)
  }
  during.all = false
  await asking
  t.same([...met].filter((what) => what !== 200 && what !== 503 && what !== 'refused'), [])
  t.match(firewall.said(), /the daemon cannot be asked at 10.99.0.1:9169: .*: the rules stay as they are, trying again\n/)
})

t.test('a daemon that can use no record offers no view: the rules in the kernel stay', { skip }, async (t) => {
  const env: Record<string, string> = { IMDS_RESYNC_SECONDS: '1' }
  const host = await startFirewallHost(t, env)
  const alpha = await host.addGuest('alpha')
  const firewall = await host.startFirewall()
  const revision = await host.letIn(alpha)
  const published = await host.store.get('srv-alpha')
  t.match(await host.store.put({ ...published!.document as object, revision: revision + 1 }, Buffer.from('ten bytes.')), { kind: 'published' })
  const rules = () => host.nft('list set inet imds guests4')
  const before = await rules()
  t.match(before, '"tap-int-alpha"')
  const ready = async () => (JSON.parse(await host.operator('/readyz')) as { ready: boolean, faulty: number })

  env['IMDS_USER_DATA_MAX_BYTES'] = '1'
  await host.restartDaemon()
  await until(async () => (await ready()).faulty === 1, 'the fault')
  await until(() => firewall.said().endsWith('imdsctl: the daemon has no view to give yet: the rules stay as they are, trying again\n'), 'the firewall to be refused')
  t.match(await ready(), { ready: false, problem: /^1 of 1 records/ })
  t.match(await host.imdsctl('wait', 'srv-alpha', '--revision', String(revision), '--timeout', '1'), { status: 75 })
  t.equal(await rules(), before)
  t.equal(await meet(alpha), 503)

  delete env['IMDS_USER_DATA_MAX_BYTES']
  await host.restartDaemon()
  t.match(await host.imdsctl('wait', 'srv-alpha', '--revision', String(revision + 1)), { status: 0 })
  t.equal(await meet(alpha), 200)
})

t.test('D6: a daemon of a version that marks no packets changes no rules', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const alpha = await host.addGuest('alpha')
  await host.put(alpha)
  await until(async () => (await host.operator('/instances/srv-alpha')).includes('"revision":1'), 'the record')
  t.match(await host.imdsctl('firewall', '--apply'), { status: 0 })
  const rules = await host.nft('--stateless', 'list table inet imds')
  const older = JSON.stringify({ ...JSON.parse(await host.operator('/firewall')) as object, limitedDscp: undefined, guests: [] })
  const daemon = await startHeld([...host.hypervisor.within, process.execPath, '-e', `
    require('node:http').createServer((request, response) => response.end(${JSON.stringify(older)})).listen(9170, '127.0.0.1', () => console.log('up'))
    process.stdin.on('end', () => process.exit()).resume()`])
  t.teardown(() => daemon.release())
  t.match(await run([...host.hypervisor.within, process.execPath, IMDSCTL, 'firewall', '--apply', '--operator', '127.0.0.1:9170']), { status: 69, stderr: /a document that this version cannot read/ })
  t.equal(await host.nft('--stateless', 'list table inet imds'), rules)
  t.equal(await meet(alpha), 200)
})

t.test('imdsctl firewall prints the rules, applies them once and removes them', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const alpha = await host.addGuest('alpha')
  await host.put(alpha)
  await until(async () => (await host.operator('/instances/srv-alpha')).includes('"revision":1'), 'the record')
  const printed = await host.imdsctl('firewall')
  t.match(printed, { status: 0, stderr: '' })
  t.match(printed.stdout.toString(), '"tap-int-alpha" . 02:24:19:00:01:01 . 10.88.1.2 . 169.254.169.254 . 80')
  await must([...host.hypervisor.within, 'nft', '-c', '-f', '-'], { input: printed.stdout.toString() })
  t.equal((await run([...host.hypervisor.within, 'nft', 'list', 'table', 'inet', 'imds'])).status, 1, 'nothing is applied by printing')
  t.match(await host.imdsctl('firewall', '--apply'), { status: 0, stderr: '' })
  t.same([await meet(alpha), await meet(host.hypervisor)], [200, 'refused'])
  t.match(await host.imdsctl('wait', 'srv-alpha', '--revision', '1', '--timeout', '2'), { status: 75 }, 'nobody follows the view: wait does not rely on it')
  for (let i = 0; i < 2; i++) t.match(await host.imdsctl('firewall', '--remove'), { status: 0, stderr: '' })
  t.equal(await meet(host.hypervisor), 503)
  t.match(await host.imdsctl('firewall', '--watch'), { status: 64 })
  t.match(await run([...host.hypervisor.within, process.execPath, IMDSCTL, 'firewall', '--apply', '--operator', '127.0.0.1:1']), { status: 69, stderr: /the daemon cannot be asked at 127.0.0.1:1/ })
})
