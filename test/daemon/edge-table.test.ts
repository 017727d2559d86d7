/**
 * The table in the kernel while somebody else changes it too: a real nft, in a namespace of its own.
 */
import { chmodSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { Table } from '../../src/cli/nft.ts'
import { buildRules, type EdgeRules } from '../../src/edge/rules.ts'
import { run } from '../support/held.ts'
import { makeHypervisor, withoutNamespaces } from '../support/namespaces.ts'

/** The rules of guests by their hop limits. */
function rulesOf(limits: readonly number[], port = 9169): EdgeRules {
  const guests = limits.map((httpPutResponseHopLimit, i) => {
    const n = String(i + 1)
    const one = { id: `int-${n}`, network: 'default', macAddress: `02:24:19:00:00:0${n}`, ipv4Addresses: [`10.0.0.${n}`], ipv6Addresses: [`fd00::${n}`], ipv6Prefixes: [`fd00:${n}::/64`] }
    return { id: `srv-${n}`, revision: 1, httpPutResponseHopLimit, interfaces: [one] }
  })
  const listeners = ['169.254.169.254', 'fd00:ec2::254'].map((address) => ({ network: 'default', address, port: 80 }))
  return buildRules({ version: 'a.1', link: 'tap-{interfaceId}', listeners, operator: { address: '127.0.0.1', port }, limitedDscp: 0x0b, guests })
}

/** From rules to rules, and how many transactions that needs: a replacement two, and it forgets what the kernel remembers. */
const STEPS: readonly (readonly [what: string, from: EdgeRules, to: EdgeRules, transactions: number])[] = [
  ['the whole table', rulesOf([1]), rulesOf([1, 7], 9170), 2],
  ['one more guest', rulesOf([1]), rulesOf([1, 1]), 1],
  ['the first guests', rulesOf([]), rulesOf([1, 7]), 1],
  ['one more hop limit', rulesOf([1]), rulesOf([1, 7]), 1],
]
const MEDDLING = [
  'insert rule inet imds prerouting accept',
  'insert rule inet imds hop_1 accept',
  'insert rule inet imds hop_7 accept',
  'add chain inet imds hop_evil { type filter hook prerouting priority -300; policy drop; }',
  'add chain inet imds evil.x { type filter hook prerouting priority -300; policy drop; }',
  'add table inet imds { flags dormant; }',
  'flush set inet imds links',
  'flush set inet imds guests4',
  'flush ruleset',
]

t.test('what somebody does between a transaction and the look at it does not pass for ours', { skip: withoutNamespaces() }, async (t) => {
  const { within, remove } = await makeHypervisor()
  t.teardown(remove)
  const directory = t.testdir({ nft: `#!/bin/sh
d=$(dirname "$0")
case "$*" in
  *list*) for next in $(ls "$d"/next.* 2>/dev/null | head -n 1); do ${within.join(' ')} /usr/sbin/nft -f "$next" 2>/dev/null; rm "$next"; done ;;
  *) echo >> "$d/transactions" ;;
esac
exec ${within.join(' ')} /usr/sbin/nft "$@"
` })
  chmodSync(join(directory, 'nft'), 0o755)
  const path = process.env['PATH']!
  process.env['PATH'] = `${directory}:${path}`
  t.teardown(() => { process.env['PATH'] = path })
  const listing = async () => (await run([...within, '/usr/sbin/nft', '--stateless', 'list', 'ruleset'])).stdout.toString().split(/[\s,]+/).sort().join(' ')

  for (const [what, from, to, transactions] of STEPS) {
    const undisturbed = new Table()
    await undisturbed.apply(from)
    rmSync(join(directory, 'transactions'))
    await undisturbed.apply(to)
    t.equal(readFileSync(join(directory, 'transactions'), 'utf8').length, transactions, what)
    const expected = await listing()
    t.equal(await undisturbed.restore(), false, `${what}: nobody was at it`)
    for (const words of MEDDLING) {
      for (const times of words === 'flush ruleset' ? [1, 2] : [1]) { // who does the same each time cannot be told apart, unless nothing is left
        const table = new Table()
        await table.apply(from)
        for (let i = 0; i < times; i++) writeFileSync(join(directory, `next.${String(i)}`), words)
        await table.apply(to)
        await table.restore()
        t.notOk(readdirSync(directory).some((name) => name.startsWith('next')), 'it was done')
        t.equal(await listing(), expected, `${what}, ${words}, ${String(times)} times`)
      }
    }
  }
})
