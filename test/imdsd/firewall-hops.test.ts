/** The firewall limits how many hops the response to a token PUT travels (contract D6), over IPv4 and IPv6. */
import t from 'tap'
import { curl, giveIpv6, sendPieces, sendRaw, SERVICE6, startFirewallHost } from '../support/netns/firewall-host.ts'
import { must } from '../support/programs/processes.ts'
import { SERVICE, withoutNamespaces } from '../support/netns/namespaces.ts'

const skip = withoutNamespaces()
const TOKEN = `http://${SERVICE}/latest/api/token`
const PUT = ['--request', 'PUT', '--header', 'X-aws-ec2-metadata-token-ttl-seconds: 60']

/**
 * Counts, in a guest's namespace, packets from the service that have a DSCP. Returns a function that reads the count.
 */
async function countDscps({ within }: { readonly within: readonly string[] }): Promise<() => Promise<number>> {
  await must([
    ...within,
    'nft',
    'add table inet dscps; add counter inet dscps some; add chain inet dscps incoming { type filter hook prerouting priority -300; }; ' +
      'add rule inet dscps incoming tcp sport 80 ip dscp != cs0 counter name some; add rule inet dscps incoming tcp sport 80 ip6 dscp != cs0 counter name some',
  ])
  return async () =>
    Number(/packets (\d+)/.exec((await must([...within, 'nft', 'list counter inet dscps some'])).toString())?.[1])
}

t.test('D6: the response to a token PUT travels no further than the hop limit', { skip }, async (t) => {
  const host = await startFirewallHost(t)
  const alpha = await host.addGuest('alpha')
  const container = await alpha.addContainer()
  await host.startFirewall()
  await host.putAndWait(alpha)
  const request = (method: string, path: string) =>
    `${method} ${path} HTTP/1.1\r\nHost: x\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n`
  const [put, get] = [request('PUT', '/latest/api/token'), request('GET', '/latest/meta-data/instance-id')]

  t.type(await curl(alpha, PUT, TOKEN), 'number', 'the guest itself gets a response')
  t.equal(await curl(container), 200, 'a container one hop behind it gets the response to a GET')
  t.equal(await curl(container, PUT, TOKEN), 'no response', 'but not the response to a PUT')

  await t.test(
    'the mark (a DSCP) stays on the hypervisor, and a rule that changes DSCPs does not lift the limit',
    async (t) => {
      const marked = await countDscps(alpha)
      t.type(await curl(alpha, PUT, TOKEN), 'number')
      t.equal(await marked(), 0)
      await host.nft(
        'add table ip site; add chain ip site output { type filter hook output priority mangle; }; add rule ip site output tcp sport 80 ip dscp set af11',
      )
      t.type(await curl(alpha, PUT, TOKEN), 'number')
      t.ok((await marked()) > 0)
      t.equal(await curl(container, PUT, TOKEN), 'no response')
      await host.nft('delete table ip site')
    },
  )

  await t.test('the limit applies however the PUT is sent', async (t) => {
    const half = put.slice(0, -2) + 'X: '
    const cases: readonly (readonly [how: string, pieces: readonly string[], isGetAnswered: boolean])[] = [
      ['alone', [put], false],
      ['after a GET on the same connection', [get, put], true],
      ['after a GET in the same segment', [get + put], false],
      [
        'its beginning after a GET in the same segment, its end in a segment that begins like a GET',
        [get + half, 'GET foo\r\n\r\n'],
        true,
      ],
      ['the same with a HEAD', [get + half, 'HEAD foo\r\n\r\n'], true],
      ['in a segment with the end of a GET', [get.slice(0, -2), `\r\n${put}`], false],
      ['cut within its method', [put.slice(0, 2), put.slice(2)], false],
      ['after line breaks, cut within its target', [`\r\n\r\n${put.slice(0, 9)}`, put.slice(9)], false],
    ]
    const results = await Promise.all(
      cases.map(async ([how, pieces, isGetAnswered]) => ({
        how,
        isGetAnswered,
        text: await sendPieces(container, pieces, isGetAnswered),
      })),
    )
    for (const { how, isGetAnswered, text } of results) {
      t.notMatch(text, /HTTP\/1\.1 (?!200)|[\w-]{54}==|[\s\S]HTTP\/1\.1/i, how)
      if (isGetAnswered) t.match(text, /srv-alpha$/, `${how}: the GET before it is answered`)
    }
    t.match(await sendPieces(alpha, [get, put]), /HTTP\/1\.1[\s\S]+HTTP\/1\.1/, 'the guest itself gets both responses')
    t.match(
      await sendPieces(alpha, [get + put]),
      /srv-alphaHTTP\/1\.1 200[\s\S]+[\w-]{54}==$/,
      'the guest itself gets both responses when it pipelines',
    )
  })

  await t.test('a container with raw sockets gets no token by a PUT that overlaps the segments of a GET', async (t) => {
    const overlapping = [`0:${get}`, `${get.length - 4}:GET ${put}`].map((piece) => piece.replaceAll('\r\n', '\\r\\n'))
    t.match(
      await sendRaw(alpha, 'talk', alpha.address, SERVICE, ...overlapping),
      /srv-alpha[\s\S]+[\w-]{54}==$/,
      'the guest itself gets a token with the same segments',
    )
    t.match(await sendRaw(container, 'talk', '172.17.0.2', SERVICE, ...overlapping), /srv-alpha$/)
  })

  await t.test('with a limit of two hops the response reaches the container', async (t) => {
    await host.putAndWait(alpha, { options: { httpPutResponseHopLimit: 2 } })
    t.type(await curl(container, PUT, TOKEN), 'number')
    await host.putAndWait(alpha)
    t.equal(await curl(container, PUT, TOKEN), 'no response', 'with a limit of one hop it does not')
  })
})

t.test('D6: over IPv6 a guest is limited to its prefixes, and its containers to the hop limit', { skip }, async (t) => {
  const [ALPHA, BRAVO] = ['2a02:1348:178:1', '2a02:1348:178:2']
  const host = await startFirewallHost(t, { IMDS_LISTEN: `${SERVICE}:80,[${SERVICE6}]:80` })
  const alpha = await host.addGuest('alpha')
  const container = await alpha.addContainer()
  await giveIpv6(host, alpha, container, ALPHA, [`${ALPHA}:dead:beef:0:1`, `${BRAVO}::2`])
  await host.startFirewall()
  await host.putAndWait(alpha, {
    options: { httpProtocolIpv6: 'enabled' },
    interfaces: [
      {
        id: 'int-alpha',
        macAddress: alpha.macAddress,
        ipv4Addresses: [alpha.address],
        ipv6Addresses: ['2a02:1348:178:9::7'],
        ipv6Prefixes: [`${ALPHA}::/64`],
      },
    ],
  })
  const at = `http://[${SERVICE6}]/latest/meta-data/instance-id`
  for (const address of [`${ALPHA}::2`, `${ALPHA}:dead:beef:0:1`])
    t.equal(await curl(alpha, ['--interface', address], at), 200, address)
  const before = await host.counted('unknown_peers')
  t.not(await curl(alpha, ['--interface', `${BRAVO}::2`], at), 200, 'an address of another prefix')
  t.ok((await host.counted('unknown_peers')) > before)
  t.match(await sendRaw(alpha, 'syn', `${ALPHA}::2`, SERVICE6, 'whole'), /^SA\b/)
  t.equal(await sendRaw(alpha, 'syn', `${ALPHA}::2`, SERVICE6, 'fragments'), '', 'no connection is opened by fragments')
  t.equal(await curl(container, [], at), 200, 'a container with an address of the prefix')
  t.equal(await curl(container, PUT, `http://[${SERVICE6}]/latest/api/token`), 'no response')
  const marked = await countDscps(alpha)
  t.type(await curl(alpha, ['--interface', `${ALPHA}::2`, ...PUT], `http://[${SERVICE6}]/latest/api/token`), 'number')
  t.equal(await marked(), 0, 'the mark stays on the host')

  await host.putAndWait(alpha, {
    options: { httpProtocolIpv6: 'enabled', httpPutResponseHopLimit: 2 },
    interfaces: [
      {
        id: 'int-alpha',
        macAddress: alpha.macAddress,
        ipv4Addresses: [alpha.address],
        ipv6Prefixes: ['2a02:1348:178::/48'],
      },
    ],
  })
  t.equal(
    await curl(alpha, ['--interface', `${ALPHA}::2`], at),
    200,
    'the prefix of the next revision contains the former one',
  )
  t.type(await curl(container, PUT, `http://[${SERVICE6}]/latest/api/token`), 'number', 'the hop limit is now 2')
})
