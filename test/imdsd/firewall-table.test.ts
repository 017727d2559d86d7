/** The firewall's table in the kernel while others change it too, with a real nft in a namespace. */
import { chmodSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { NftRefusal, refusalOf, Table } from '../../src/imdsctl/firewall-agent/nft.ts'
import { findRefused } from '../../src/imdsctl/firewall-agent/refused.ts'
import { buildRules, type FirewallRules } from '../../src/imdsd/firewall/rules.ts'
import type { FirewallDocument } from '../../src/imdsd/firewall/document.ts'
import { must, run } from '../support/programs/processes.ts'
import { makeHypervisor, withoutNamespaces } from '../support/netns/namespaces.ts'
import { testDirectory } from '../support/test-directory.ts'

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
    return { id: `srv-${n}`, revision: 1, httpPutResponseHopLimit, interfaces: [one] }
  })
  const listeners = ['169.254.169.254', 'fd00:ec2::254'].map((address) => ({ network: 'default', address, port: 80 }))
  return buildRules(
    {
      version: 'a.1',
      link: 'tap-{interfaceId}',
      listeners,
      operator: { address: '127.0.0.1', port },
      limitedDscp: 0x0b,
      guests,
    },
    [],
  )
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

/**
 * Changes of the rules, and the number of transactions for each. Replacing the whole table takes two, and discards the
 * learned elements of its sets. The check after it is the same for all, so one of them is tried with all interference.
 */
const STEPS: readonly (readonly [
  what: string,
  from: FirewallRules,
  to: FirewallRules,
  transactions: number,
  interference: readonly string[],
])[] = [
  ['the whole table', rulesOf([1]), rulesOf([1, 7], 9170), 2, ['insert rule inet imds prerouting accept', FLUSH]],
  ['one more hop limit', rulesOf([1]), rulesOf([1, 7]), 1, INTERFERENCE],
  ['one more guest', rulesOf([1]), rulesOf([1, 1]), 1, []],
  ['the first guests', rulesOf([]), rulesOf([1, 7]), 1, []],
]

t.test(
  'a change by another program between a transaction and its check is detected',
  { skip: withoutNamespaces() },
  async (t) => {
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

    for (const [what, from, to, transactions, interference] of STEPS) {
      // each change, without and with interference
      const undisturbed = new Table()
      await undisturbed.apply(from)
      rmSync(join(directory, 'transactions'))
      await undisturbed.apply(to)
      t.equal(readFileSync(join(directory, 'transactions'), 'utf8').length, transactions, what)
      const expected = await listing()
      t.equal(await undisturbed.restore(), false, `${what}: nobody changed the table`)
      for (const command of interference) {
        for (const times of command === FLUSH ? [1, 2] : [1]) {
          // an identical change made twice cannot be detected, unless it removes everything
          const table = new Table()
          await table.apply(from)
          for (let i = 0; i < times; i++) writeFileSync(join(directory, `next.${i}`), command)
          await table.apply(to)
          await table.restore()
          t.notOk(
            readdirSync(directory).some((name) => name.startsWith('next')),
            'the interference was executed',
          )
          t.equal(await listing(), expected, `${what}, ${command}, ${times} times`)
        }
      }
    }
  },
)

/**
 * Puts an nft into PATH that rejects input if `rejects`, a shell condition on $text, is true. Other input goes to the
 * real nft in a namespace.
 */
async function withNft(t: Test, rejects: string): Promise<{ nft: (...args: string[]) => Promise<string> }> {
  const { within, remove } = await makeHypervisor()
  t.teardown(remove)
  const directory = testDirectory(t, {
    nft: `#!/bin/sh
case "$*" in *list*) exec ${within.join(' ')} /usr/sbin/nft "$@" ;; esac
text=$(mktemp) && cat > $text
if ${rejects}; then echo "/dev/stdin:7:2-3: Error: no such thing" >&2; rm $text; exit 1; fi
${within.join(' ')} /usr/sbin/nft "$@" < $text; status=$?; rm $text; exit $status
`,
  })
  chmodSync(join(directory, 'nft'), 0o755)
  const path = process.env['PATH']!
  process.env['PATH'] = `${directory}:${path}`
  t.teardown(() => {
    process.env['PATH'] = path
  })
  return { nft: async (...args) => (await must([...within, '/usr/sbin/nft', ...args])).toString() }
}
const viewOf = (guests: number): FirewallDocument => ({
  version: 'a.1',
  link: 'tap-{interfaceId}',
  listeners: [{ network: 'default', address: '169.254.169.254', port: 80 }],
  operator: { address: '127.0.0.1', port: 9169 },
  limitedDscp: 0x0b,
  guests: Array.from({ length: guests }, (_, n) => {
    const one = {
      id: `int-${n}`,
      network: 'default',
      macAddress: macOf(n),
      ipv4Addresses: [`10.0.0.${n}`],
      ipv6Addresses: [],
      ipv6Prefixes: [],
    }
    return { id: `srv-${n}`, revision: 1, httpPutResponseHopLimit: 1, interfaces: [one] }
  }),
})
const macOf = (n: number) => `02:24:19:00:00:${n.toString(16).padStart(2, '0')}`
const refusalsOf = (guests: readonly number[]) =>
  guests.map((n) => ({
    instance: `srv-${n}`,
    interface: `int-${n}`,
    message: 'nft: Error: no such thing',
  }))

for (const [what, rejects, rejected] of [
  ['the first and the last', `grep -q -e ${macOf(0)} -e ${macOf(39)} $text`, [0, 39]],
  [
    'the second of two that it accepts only separately',
    `grep -q ${macOf(7)} $text && grep -q ${macOf(30)} $text`,
    [30],
  ],
  ['nothing', 'false', []],
] as const) {
  t.test(
    `of 40 interfaces, findRefused finds those that nft rejects: ${what}`,
    { skip: withoutNamespaces() },
    async (t) => {
      await withNft(t, rejects)
      t.same(await findRefused(viewOf(40), []), refusalsOf(rejected))
      t.same(
        await findRefused(viewOf(40), refusalsOf([3, ...rejected])),
        refusalsOf(rejected),
        'interfaces that were rejected before are tried again',
      )
    },
  )
}

t.test(
  'no interface is left out if nft rejects the rules without any, or rejects more than 16',
  { skip: withoutNamespaces() },
  async (t) => {
    await withNft(t, 'true')
    t.equal(await findRefused(viewOf(2), []), undefined)
    await withNft(t, `grep -q ${macOf(0).slice(0, -2)} $text`)
    t.equal(await findRefused(viewOf(17), []), undefined)
    t.equal((await findRefused(viewOf(16), []))?.length, 16)
  },
)

t.test(
  'a trial of rules changes nothing in the kernel; rejected rules do not discard learned elements',
  { skip: withoutNamespaces() },
  async (t) => {
    const { nft } = await withNft(t, 'false')
    const good = rulesOf([1])
    const [[key = ''] = []] = good.sets.get('prefixes6')!
    const bad = {
      ...good,
      sets: new Map([
        ...good.sets,
        [
          'prefixes6',
          new Map([
            [key, ''],
            [key.replace('fd00:1::/64', 'fd00:1::/96'), ''],
          ]),
        ],
      ]),
    }
    const table = new Table()
    await table.apply(good)
    const before = await nft('list', 'ruleset')
    t.match(await refusalOf(bad), /^nft: .*Error: /)
    t.equal(await refusalOf(good), undefined)
    t.equal(await nft('list', 'ruleset'), before)
    const opened = '"tap-int-1" . 02:24:19:00:00:99'
    await nft('add', 'element', 'inet', 'imds', 'opened', `{ ${opened} }`)
    t.type(await table.apply(bad).catch((error: unknown) => error), NftRefusal)
    t.equal(await table.restore(), false)
    await table.apply(rulesOf([1, 1]))
    t.match(await nft('list', 'set', 'inet', 'imds', 'opened'), opened)
    t.match(await nft('list', 'set', 'inet', 'imds', 'links'), '"tap-int-2"')
  },
)
