/**
 * The host's edge: how far the answer to a token PUT travels (contract D6), and the same rules over IPv6.
 */
import t from 'tap'
import { meet, SERVICE6, sendPieces, startEdgeHost } from '../support/firewall.ts'
import { must } from '../support/held.ts'
import { SERVICE, withoutNamespaces } from '../support/namespaces.ts'

const skip = withoutNamespaces()
const TOKEN = `http://${SERVICE}/latest/api/token`
const PUT = ['--request', 'PUT', '--header', 'X-aws-ec2-metadata-token-ttl-seconds: 60']

t.test('D6: the answer to a token PUT travels no further than the hop limit', { skip }, async (t) => {
  const host = await startEdgeHost(t)
  const alpha = await host.addGuest('alpha')
  const container = await alpha.addContainer()
  await host.startFirewall()
  await host.letIn(alpha)
  const request = (method: string, path: string) => `${method} ${path} HTTP/1.1\r\nHost: x\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n`
  const [put, get] = [request('PUT', '/latest/api/token'), request('GET', '/latest/meta-data/instance-id')]

  t.type(await meet(alpha, PUT, TOKEN), 'number', 'the guest itself is answered')
  t.equal(await meet(container), 200, 'a container one hop behind it may GET')
  t.equal(await meet(container, PUT, TOKEN), 'silence', 'and gets no answer to a PUT')

  await t.test('however the PUT is sent', async (t) => {
    t.match(await sendPieces(container, [get]), /srv-alpha$/)
    for (const [how, pieces] of Object.entries<string[]>({
      'after a GET on the same connection': [get, put],
      'in two pieces': [put.slice(0, 1), put.slice(1)],
      'in many pieces': [put.slice(0, 2), put.slice(2, 3), put.slice(3, 5), put.slice(5)],
      'after empty lines': [`\r\n\r\n${put}`],
      'with the end of a GET': [get.slice(0, -2), `\r\n${put}`],
    })) {
      const text = await sendPieces(container, pieces)
      t.notMatch(text, /HTTP\/1\.1 (?!200)|token|[\s\S]HTTP\/1\.1/i, how)
      if (pieces[0] === get) t.match(text, /srv-alpha$/, `${how}: the GET is answered`)
    }
    for (const [how, pieces] of Object.entries<string[]>({
      'pipelined behind a GET': [get + put],
      'behind the body of a GET': [get.replace('\r\n\r\n', '\r\nContent-Length: 4\r\n\r\n'), `GET ${put}`],
      'behind a chunk of a GET': [get.replace('\r\n\r\n', '\r\nTransfer-Encoding: chunked\r\n\r\n'), `GET \r\n0\r\n\r\n${put}`],
      'behind a GET and its body in one segment': [get.replace('\r\n\r\n', '\r\nContent-Length: 4\r\n\r\n') + `GET ${put}`],
    })) {
      const text = await sendPieces(container, pieces)
      t.match(text, /srv-alpha/, `${how}: the GET is answered`)
      t.notMatch(text, /[\w-]{54}==/, `${how}: the daemon gives no token`)
    }
    t.match(await sendPieces(alpha, [get, put]), /HTTP\/1\.1[\s\S]+HTTP\/1\.1/, 'the guest itself is answered both')
  })

  await t.test('two hops reach the container', async (t) => {
    await host.letIn(alpha, { options: { httpPutResponseHopLimit: 2 } })
    t.type(await meet(container, PUT, TOKEN), 'number')
    await host.letIn(alpha)
    t.equal(await meet(container, PUT, TOKEN), 'silence', 'and one does not again')
  })
})

t.test('a guest that PUTs on new connections without end is reset beyond its rate, so what the kernel remembers of it is bounded', { skip }, async (t) => {
  const host = await startEdgeHost(t)
  const alpha = await host.addGuest('alpha')
  await host.startFirewall()
  await host.letIn(alpha)
  const code = `
    const { connect } = require('node:net')
    let [opened, reset] = [0, 0]
    const next = () => {
      if (opened >= 20000 || reset > 500) return
      opened++
      const socket = connect(80, '${SERVICE}', () => socket.end('PUT /latest/api/token HTTP/1.0\\r\\n\\r\\n')).on('error', () => reset++).on('close', next).resume()
    }
    for (let i = 0; i < 20; i++) next()
    process.on('exit', () => console.log(opened))`
  const opened = Number(await must([...alpha.within, process.execPath, '-e', code]))
  const remembered = (await host.nft('list set inet imds puts4')).match(/"tap-int-alpha" \. 10\.88\.1\.2 \. \d+/g) ?? []
  t.comment(`${String(remembered.length)} of ${String(opened)} connections are remembered`)
  t.ok(remembered.length >= 2_000 && remembered.length < opened)
  t.ok(await host.counted('too_many') > 0)
})

t.test('over IPv6 a guest is held to its prefixes, and its containers to the hop limit', { skip }, async (t) => {
  const [ALPHA, BRAVO] = ['2a02:1348:178:1', '2a02:1348:178:2']
  const host = await startEdgeHost(t, { IMDS_LISTEN: `${SERVICE}:80,[${SERVICE6}]:80` })
  const alpha = await host.addGuest('alpha')
  const container = await alpha.addContainer()
  const ip = ({ within }: { within: readonly string[] }, words: string) => must([...within, 'ip', '-6', ...words.split(' ')])
  await ip(host.hypervisor, `address add ${ALPHA}::1/64 dev tap-int-alpha nodad`)
  await ip(host.hypervisor, `route add ${ALPHA}:c::/80 via ${ALPHA}::2`)
  for (const address of [`${ALPHA}::2`, `${ALPHA}:dead:beef:0:1`, `${BRAVO}::2`]) await ip(alpha, `address add ${address}/64 dev eth0 nodad`)
  await ip(alpha, `route add ${SERVICE6} via ${ALPHA}::1`)
  await ip(alpha, `address add ${ALPHA}:c::1/80 dev ctr0 nodad`)
  await must([...alpha.within, 'sh', '-c', 'echo 1 > /proc/sys/net/ipv6/conf/all/forwarding'])
  await ip(container, `address add ${ALPHA}:c::2/80 dev eth0 nodad`)
  await ip(container, `route add default via ${ALPHA}:c::1`)
  await host.startFirewall()
  await host.letIn(alpha, {
    options: { httpProtocolIpv6: 'enabled' }, interfaces: [{ id: 'int-alpha', macAddress: alpha.macAddress, ipv4Addresses: [alpha.address], ipv6Addresses: ['2a02:1348:178:9::7'], ipv6Prefixes: [`${ALPHA}::/64`] }],
  })
  const at = `http://[${SERVICE6}]/latest/meta-data/instance-id`
  for (const address of [`${ALPHA}::2`, `${ALPHA}:dead:beef:0:1`]) t.equal(await meet(alpha, ['--interface', address], at), 200, address)
  const before = await host.counted('strangers')
  t.not(await meet(alpha, ['--interface', `${BRAVO}::2`], at), 200, 'an address of another prefix')
  t.ok(await host.counted('strangers') > before)
  t.equal(await meet(container, [], at), 200, 'a container with an address of the prefix')
  t.equal(await meet(container, PUT, `http://[${SERVICE6}]/latest/api/token`), 'silence')
  t.type(await meet(alpha, ['--interface', `${ALPHA}::2`, ...PUT], `http://[${SERVICE6}]/latest/api/token`), 'number')

  await host.letIn(alpha, {
    options: { httpProtocolIpv6: 'enabled', httpPutResponseHopLimit: 2 }, interfaces: [{ id: 'int-alpha', macAddress: alpha.macAddress, ipv4Addresses: [alpha.address], ipv6Prefixes: ['2a02:1348:178::/48'] }],
  })
  t.equal(await meet(alpha, ['--interface', `${ALPHA}::2`], at), 200, 'a prefix that contains the former one')
  t.type(await meet(container, PUT, `http://[${SERVICE6}]/latest/api/token`), 'number', 'and another hop limit')
})
