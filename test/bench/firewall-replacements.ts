/**
 * Replaces the firewall's table again and again: `node firewall-replacements.ts GUESTS TIMES`, in a network namespace with
 * the guest 10.0.0.0 on the link tap-int-0. Each time one more guest has moved: first by nft alone, then as the agent does
 * it, with the counters read before and a check after. Waits for a line before the first, and prints the times as JSON.
 */
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { acceptMarks } from '../../src/imdsctl/firewall-agent/accepted-mark.ts'
import { Table } from '../../src/imdsctl/firewall-agent/nft.ts'
import { buildRules, replacement } from '../../src/imdsd/firewall/rules.ts'

const [count = 0, times = 0] = process.argv.slice(2).map(Number)
const hex = (n: number) => n.toString(16).padStart(2, '0')

function rulesOf(version: number) {
  return buildRules({
    version: `a.${version}`,
    link: 'tap-{interfaceId}',
    listeners: ['169.254.169.254', 'fd00:ec2::254'].map((address) => ({ network: 'default', address, port: 80 })),
    operator: { address: '127.0.0.1', port: 9169 },
    limitedDscp: 0x0b,
    guests: Array.from({ length: count }, (_, n) => ({
      id: `srv-${n}`,
      revision: 1,
      httpPutResponseHopLimit: 1,
      interfaces: [
        {
          id: `int-${n}`,
          network: 'default',
          macAddress: `02:24:19:00:${hex(n >> 8)}:${hex(n & 255)}`,
          ipv4Addresses: [`10.${n > 0 && n <= version ? 1 : 0}.${n >> 8}.${n & 255}`],
          ipv6Addresses: [`fd00::${(n + 1).toString(16)}`],
          ipv6Prefixes: [`fd00:0:0:${(n + 1).toString(16)}::/64`],
        },
      ],
    })),
  })
}

acceptMarks()
const table = new Table()
await table.apply(rulesOf(0))
console.log('up')
await once(process.stdin, 'data')
const [transactionsMs, appliedMs]: [number[], number[]] = [[], []]
for (let i = 1; i <= times; i++) {
  const rules = rulesOf(i)
  const input = replacement(rules)
  const startedMs = performance.now()
  if (spawnSync('nft', ['-f', '-'], { input }).status !== 0) throw new Error('nft refuses the rules')
  const replacedMs = performance.now()
  await table.apply(rules)
  transactionsMs.push(replacedMs - startedMs)
  appliedMs.push(performance.now() - replacedMs)
}
console.log(JSON.stringify({ transactionsMs, appliedMs }))
process.exit()
