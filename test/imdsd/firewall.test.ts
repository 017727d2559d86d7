/** The firewall: its rules follow the view and allow a guest only its own link, MAC and addresses. */
import t from 'tap'
import { until } from '../support/programs/daemon.ts'
import { curl, OPERATOR, sendRaw, startFirewallHost, type FirewallHost } from '../support/netns/firewall-host.ts'
import type { Readiness } from '../../src/imdsd/operator/documents.ts'
import { must } from '../support/programs/processes.ts'
import { SERVICE, withoutNamespaces } from '../support/netns/namespaces.ts'

const skip = withoutNamespaces()
const ageOf = async (host: FirewallHost) =>
  (JSON.parse(await host.operator('/readyz')) as Readiness).firewall.ageSeconds

t.test('imdsctl wait returns when the rules admit the instance, and not before', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const alpha = await host.addGuest('alpha')
  const revision = String(await host.put(alpha))
  const waitShortly = () => host.imdsctl('wait', 'srv-alpha', '--revision', revision, '--timeout', '5')
  t.match(await waitShortly(), {
    status: 75,
    stderr: /does not serve revision 1 of srv-alpha: it has revision 1; the firewall has not admitted the guest yet/,
  })
  t.match(JSON.parse(await host.operator('/readyz')), { ready: true, firewall: { required: true, applied: false } })
  const firewall = await host.startFirewall()
  t.match(await waitShortly(), { status: 0 })
  t.equal(await curl(alpha), 200)
  t.match(JSON.parse(await host.operator('/readyz')), { firewall: { required: true, applied: true } })
  t.equal(firewall.output(), 'imdsctl: the rules are applied: 1 interfaces are admitted\n')

  await t.test('an interface without a possible link name is kept out, and wait says why', async (t) => {
    const long = await host.addGuest('muchtoolong', 'tap9')
    const { status, stderr } = await host.imdsctl(
      'wait',
      'srv-muchtoolong',
      '--revision',
      String(await host.put(long)),
      '--timeout',
      '20',
    )
    t.equal(status, 65)
    t.match(stderr, 'imdsctl: the guest of srv-muchtoolong can never start with revision 2: ')
    t.match(
      stderr,
      'the firewall keeps interface int-muchtoolong out: its link name by the rule tap-{interfaceId} has 19 characters, and Linux allows 15',
    )
    await until(
      () => firewall.output().includes('left out: srv-muchtoolong: interface int-muchtoolong'),
      'the firewall to name it',
    )
    t.same([await curl(long), await curl(alpha)], ['refused', 200])
  })

  await t.test('the rules stay when the agent stops, and readyz shows that nobody maintains them', async (t) => {
    await firewall.stop()
    const bravo = await host.addGuest('bravo')
    await host.put(bravo)
    t.same([await curl(alpha), await curl(bravo)], [200, 'refused'])
    await until(async () => (await ageOf(host)) > 1, 'the age to grow')
    await host.startFirewall()
    t.match(await host.imdsctl('wait', 'srv-bravo', '--revision', '1', '--timeout', '10'), { status: 0 })
    t.same([await curl(alpha), await curl(bravo)], [200, 200])
    t.ok((await ageOf(host)) < 10)
  })
})

t.test("E1: only a guest's own link, MAC and address reach the service", { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const [alpha, bravo] = [await host.addGuest('alpha'), await host.addGuest('bravo')]
  await host.startFirewall()
  await host.putAndWait(alpha)
  await host.putAndWait(bravo)
  t.same([await curl(alpha), await curl(bravo)], [200, 200])
  /** The outcome of a request, and whether the rules counted it as one of an unknown peer. */
  const withCount = async (request: () => Promise<unknown>) => {
    const before = await host.counted('unknown_peers')
    const outcome = await request()
    return { outcome, counted: (await host.counted('unknown_peers')) > before }
  }

  await t.test('a spoofed source address is dropped', async (t) => {
    await must([...alpha.within, 'ip', 'address', 'add', `${bravo.address}/32`, 'dev', 'eth0'])
    t.same(await withCount(() => curl(alpha, ['--interface', bravo.address])), {
      outcome: 'no response',
      counted: true,
    })
    await must([...alpha.within, 'ip', 'address', 'add', '10.77.7.7/32', 'dev', 'eth0'])
    t.match(await withCount(() => curl(alpha, ['--interface', '10.77.7.7'])), { counted: true })
    t.same([await curl(alpha), await curl(bravo)], [200, 200])
  })

  await t.test('a wrong MAC is rejected', async (t) => {
    await host.putAndWait(bravo, {
      interfaces: [{ id: 'int-bravo', macAddress: '02:24:19:00:00:99', ipv4Addresses: [bravo.address] }],
    })
    t.same(await withCount(() => curl(bravo)), { outcome: 'refused', counted: true })
    await host.putAndWait(bravo)
    t.equal(await curl(bravo), 200)
  })

  await t.test('a wrong link is rejected', async (t) => {
    await host.putAndWait(bravo, {
      interfaces: [{ id: 'int-other', macAddress: bravo.macAddress, ipv4Addresses: [bravo.address] }],
    })
    t.same(await withCount(() => curl(bravo)), { outcome: 'refused', counted: true })
    await host.putAndWait(bravo)
    t.equal(await curl(bravo), 200)
  })

  await t.test('requests from other hosts and from the hypervisor itself are rejected', async (t) => {
    const other = await host.addGuest('other', 'uplink')
    t.same(await withCount(() => curl(other)), { outcome: 'refused', counted: true })
    t.same(await withCount(() => curl(host.hypervisor)), { outcome: 'refused', counted: true })
  })

  await t.test('the operator API is not reachable for a guest, known or unknown', async (t) => {
    const nobody = await host.addGuest('nobody')
    for (const guest of [alpha, nobody]) {
      for (const address of [OPERATOR, `${SERVICE}:9169`])
        t.equal(await curl(guest, [], `http://${address}/metrics`), 'refused', `${guest.name} at ${address}`)
    }
    t.ok((await host.counted('operators')) >= 4)
    t.equal(await curl(host.hypervisor, [], `http://${OPERATOR}/livez`), 200)
  })

  await t.test('fragments are dropped, because the rules cannot see their ports and flags', async (t) => {
    t.match(await sendRaw(alpha, 'syn', alpha.address, SERVICE, 'whole'), /^SA\b/)
    const before = await host.counted('fragments')
    t.equal(
      await sendRaw(alpha, 'syn', alpha.address, SERVICE, 'fragments'),
      '',
      'the same SYN in fragments opens no connection',
    )
    t.equal(await host.counted('fragments'), before + 2)
  })

  await t.test("responses leave by the guest's own link or not at all", async (t) => {
    await must([
      ...bravo.within,
      'nft',
      'add table ip seen; add chain ip seen incoming { type filter hook prerouting priority -300; }; add counter ip seen answers; add rule ip seen incoming tcp sport 80 counter name answers',
    ])
    const seen = async () =>
      Number(
        /packets (\d+)/.exec((await must([...bravo.within, 'nft', 'list counter ip seen answers'])).toString())?.[1],
      )
    const ip = (words: string) => must([...host.hypervisor.within, 'ip', ...words.split(' ')])
    await ip(`neighbor add ${alpha.address} lladdr ${bravo.macAddress} dev tap-int-bravo`)
    await ip(`route add ${alpha.address} dev tap-int-bravo`)
    const before = await host.counted('strays')
    t.equal(await curl(alpha), 'no response', 'the responses to alpha are routed to bravo')
    t.same([(await host.counted('strays')) > before, await seen()], [true, 0], 'bravo receives none of them')
    await ip(`route del ${alpha.address} dev tap-int-bravo`)
    t.equal(await curl(alpha), 200)
    t.equal(await curl(bravo), 200)
    t.ok((await seen()) > 0, 'bravo receives its own responses')
  })
})
