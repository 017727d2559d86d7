/** The firewall's table in the kernel while others change it too, with a real nft in a namespace. */
import { chmodSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { Table } from '../../src/imdsctl/firewall-agent/nft.ts'
import { buildRules, type FirewallRules } from '../../src/imdsd/firewall/rules.ts'
import { parseFirewallDocument } from '../../src/imdsd/firewall/document.ts'
import { run } from '../support/programs/processes.ts'
import { makeHypervisor, withoutNamespaces } from '../support/netns/namespaces.ts'
import { testDirectory } from '../support/test-directory.ts'

const skip = withoutNamespaces()

/** The rules of guests by their hop limits. */
function rulesOf(limits: readonly number[], port = 9169): FirewallRules {
  const guests = limits.map((httpPutResponseHopLimit, i) => {
    const n = String(i + 1)
    const one = {
      id: `int-${n}`,
      network: 'default',
      macAddress: `02:24:19:00:00:0${n}`,
      ipv4Addresses: [`10.0.0.${n}`],
      ipv6Addresses: [`fd00::${n}`],
      ipv6Prefixes: [`fd00:${n}::/64`],
    }
    return { id: `srv-${n}`, httpPutResponseHopLimit, interfaces: [one] }
  })
  const listeners = ['169.254.169.254', 'fd00:ec2::254'].map((address) => ({ network: 'default', address, port: 80 }))
  return buildRules({
    version: `a.${limits.length}`,
    link: 'tap-{interfaceId}',
    listeners,
    operator: { address: '127.0.0.1', port },
    limitedDscp: 0x0b,
    guests,
  })
}

/**
 * A hypervisor, and an nft in PATH that runs in its namespace. Before it lists the table, it runs the first of the files
 * `next.*` in `directory`: a change by another program. `transactions` there has a byte for each transaction.
 */
async function withNft(t: Test): Promise<{ directory: string; listing: () => Promise<string> }> {
  const { within, remove } = await makeHypervisor()
  t.teardown(remove)
  const directory = testDirectory(t, {
    nft: `#!/bin/sh
d=\${0%/*}
case "$*" in
  *'list table'*) for next in "$d"/next.*; do [ -e "$next" ] && ${within.join(' ')} /usr/sbin/nft -f "$next" 2>/dev/null; rm -f "$next"; break; done ;;
  *'list counters'*) ;;
  *) echo >> "$d/transactions" ;;
esac
exec ${within.join(' ')} /usr/sbin/nft "$@"
`,
  })
  chmodSync(join(directory, 'nft'), 0o755)
  const path = process.env['PATH']!
  process.env['PATH'] = `${directory}:${path}`
  t.teardown(() => {
    process.env['PATH'] = path
  })
  const listing = async () =>
    (await run([...within, '/usr/sbin/nft', '--stateless', 'list', 'ruleset'])).stdout
      .toString()
      .split(/[\s,]+/)
      .sort()
      .join(' ')
  return { directory, listing }
}

/** Changes by another program. */
const FLUSH = 'flush ruleset'
const INTERFERENCE = [
  'insert rule inet imds prerouting accept',
  'insert rule inet imds hop_1 accept',
  'insert rule inet imds hop_7 accept',
  'add chain inet imds hop_evil { type filter hook prerouting priority -300; policy drop; }',
  'add chain inet imds evil.x { type filter hook prerouting priority -300; policy drop; }',
  'add table inet imds { flags dormant; }',
  'flush set inet imds links',
  'flush set inet imds guests4',
  FLUSH,
]

/** Changes of the rules, and the number of transactions for each: with new base rules two listings are compared. */
const STEPS: readonly (readonly [what: string, from: FirewallRules, to: FirewallRules, transactions: number])[] = [
  ['one more hop limit', rulesOf([1]), rulesOf([1, 7], 9170), 2],
  ['one more guest', rulesOf([7, 1]), rulesOf([7, 1, 1]), 1],
]

t.test('a change by another program between a transaction and its check is detected', { skip }, async (t) => {
  const { directory, listing } = await withNft(t)
  for (const [what, from, to, transactions] of STEPS) {
    const undisturbed = new Table()
    await undisturbed.apply(from)
    rmSync(join(directory, 'transactions'))
    await undisturbed.apply(to)
    t.equal(readFileSync(join(directory, 'transactions'), 'utf8').length, transactions, what)
    t.equal(undisturbed.version, to.version)
    const expected = await listing()
    t.equal(await undisturbed.isWhole(), true, `${what}: nobody changed the table`)
    for (const command of INTERFERENCE) {
      for (const times of command === FLUSH ? [1, 2] : [1]) {
        // an identical change made twice cannot be detected, unless it removes everything
        const table = new Table()
        await table.apply(from)
        for (let i = 0; i < times; i++) writeFileSync(join(directory, `next.${i}`), command)
        await table.apply(to)
        t.notOk(
          readdirSync(directory).some((name) => name.startsWith('next')),
          'the interference was executed',
        )
        t.equal(await listing(), expected, `${what}, ${command}, ${times} times`)
      }
    }
  }
})

t.test('a change of a table that was confirmed is detected, and the table restored', { skip }, async (t) => {
  const { directory, listing } = await withNft(t)
  const table = new Table()
  await table.apply(rulesOf([1, 7]))
  const expected = await listing()
  for (const command of [
    ...INTERFERENCE,
    'flush chain inet imds output',
    'delete element inet imds marks { "tap-int-1" . 02:24:19:00:00:01 }',
  ]) {
    writeFileSync(join(directory, 'next.0'), command)
    t.equal(await table.isWhole(), false, command)
    await table.restore()
    t.equal(await table.isWhole(), true)
    t.equal(await listing(), expected)
  }
})

t.test('while another program keeps changing the table, it is not taken for whole', { skip }, async (t) => {
  const { directory } = await withNft(t)
  const table = new Table()
  for (let i = 0; i < 9; i++)
    writeFileSync(join(directory, `next.${i}`), `insert rule inet imds prerouting ip saddr 10.9.9.${i} accept`)
  await t.rejects(table.apply(rulesOf([1])), { message: /another program keeps changing the rules/ })
  for (let i = 5; i < 9; i++) t.equal(await table.isWhole(), false)
  await table.restore()
  t.equal(await table.isWhole(), true)
})

t.test('rules that nft rejects change nothing, and the last ones are still known', { skip }, async (t) => {
  const { listing } = await withNft(t)
  const table = new Table()
  await table.apply(rulesOf([1]))
  const before = await listing()
  const good = rulesOf([1, 1])
  const bad = { ...good, sets: new Map([...good.sets, ['guests4', new Map([['nonsense', '']])]]) }
  await t.rejects(table.apply(bad), { message: /^nft: .*Error: / })
  t.equal(await listing(), before)
  t.same([table.version, await table.isWhole()], ['a.1', true])
})

t.test('an nft that cannot list the table, for example without JSON, is named', { skip }, async (t) => {
  const { directory } = await withNft(t)
  const table = new Table()
  await table.apply(rulesOf([1]))
  writeFileSync(join(directory, 'nft'), '#!/bin/sh\necho "Error: JSON support not compiled-in" >&2\nexit 1\n')
  await t.rejects(table.isWhole(), { message: 'nft: Error: JSON support not compiled-in' })
  await t.rejects(new Table().apply(rulesOf([1])), { message: 'nft: Error: JSON support not compiled-in' })
})

/** Draws a whole number below `n`. */
function drawer(seed: number): (n: number) => number {
  let state = seed
  return (n) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((state / 2 ** 32) * n)
  }
}

t.test('nft accepts each document that the schema accepts, and lists it as it was written', { skip }, async (t) => {
  await withNft(t)
  const draw = drawer(61)
  const pick = <T>(of: readonly T[]) => of[draw(of.length)]!
  const many = <T>(most: number, make: () => T) => Array.from({ length: draw(most + 1) }, make)
  const hex = () => draw(0x1_0000).toString(16)
  const table = new Table()
  for (const link of ['tap-{interfaceId:9}', 'br0', 'br-{network}']) {
    const one = () => ({
      id: draw(2) === 0 ? pick(['a', 'B.1', '0', 'inet', 'x_y-z', 'drop']) : `i${draw(1e6)}`,
      network: pick(['red', 'blue', 'default']),
      macAddress: pick(['00:00:00:00:00:00', 'ff:ff:ff:ff:ff:ff', `02:24:19:00:00:${(16 + draw(200)).toString(16)}`]),
      ipv4Addresses: many(3, () => pick(['0.0.0.0', '255.255.255.255', `10.0.0.${draw(4)}`])),
      ipv6Addresses: many(4, () => pick(['::', '::1', '::102:304', `fd00::${hex()}`, `64:ff9b::${hex()}:1`])),
      ipv6Prefixes: many(4, () =>
        pick([
          'fd00::/48',
          'fd00::/124',
          'fd00::/64',
          `fd00:0:0:${hex()}::/64`,
          'fdff:ffff:ffff:fff0::/60',
          '2000::/48',
        ]),
      ),
    })
    const untrusted = {
      version: `z.${draw(100)}`,
      link,
      listeners: ['red', 'blue', 'blue'].flatMap((network) => [
        { network, address: pick(['169.254.169.254', '10.0.0.1', '0.0.0.0']), port: pick([80, 1, 65_535]) },
        { network, address: pick(['fd00:ec2::254', '::1', '::5:6']), port: 80 },
      ]),
      operator: { address: '127.0.0.1', port: pick([0, 9169]) },
      limitedDscp: 1 + draw(63),
      guests: Array.from({ length: 2_000 }, (_, n) => ({
        id: `srv-${n}`,
        revision: 1,
        httpPutResponseHopLimit: 1 + draw(64),
        interfaces: many(2, one),
      })),
    }
    const document = parseFirewallDocument(untrusted)
    if (document === undefined) throw new Error('the schema refuses it')
    await table.apply(buildRules(document))
    t.equal(await table.isWhole(), true, link)
  }
})
