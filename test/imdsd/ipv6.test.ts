/** IPv6: its own listener, guests that choose their addresses, and the option that enables it. */
import t, { type Test } from 'tap'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { must } from '../support/programs/processes.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { makeHypervisor, withoutNamespaces, type Guest } from '../support/netns/namespaces.ts'
import { exchange } from '../support/fixtures/socket.ts'
import { testDirectory } from '../support/test-directory.ts'

const ID = '/latest/meta-data/instance-id'
const SERVICE = 'fd00:ec2::254'
const MAC = '02:24:19:00:00:ee'

t.test('an IPv6 listener', async (t) => {
  const url = `file:${testDirectory(t)}`
  const store = await openStore({ url })
  let revision = 0
  const put = (options: Record<string, string>) =>
    store.put(
      anInstance({
        revision: ++revision,
        options,
        interfaces: [{ id: 'int-a', macAddress: MAC, ipv6Addresses: ['::1/128'] }],
      }),
    )
  await put({})
  const daemon = await startDaemon(t, { IMDS_STORE: url, IMDS_LISTEN: '[::1]:0' })
  // before that the guest is an unknown peer, which is logged
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'the instance')
  const ask = (bytes = `GET ${ID} HTTP/1.0\r\n\r\n`) => exchange(daemon.guestPort, bytes, { host: '::1' })
  const counted = (reason: string) =>
    daemon.metric(`imds_requests_total{route="unknown",method="other",status="403",reason="${reason}"}`)

  for (const [number, options, reason] of [
    ['E1', {}, 'ipv6-disabled'],
    ['D6', { httpEndpoint: 'disabled', httpProtocolIpv6: 'enabled' }, 'endpoint-disabled'],
  ] as const) {
    await t.test(
      `${number}: ${JSON.stringify(options)} refuses everything, invalid requests too, with an empty 403`,
      async (t) => {
        await put(options)
        await until(
          async () =>
            (await ask('garbage\r\n\r\n').then(({ status }) => status)) === 403 && (await counted(reason)) > 0,
          'the option',
        )
        const before = await counted(reason)
        for (const bytes of [
          `GET ${ID} HTTP/1.0\r\n\r\n`,
          'GET /%zz HTTP/1.0\r\n\r\n',
          'PUT /latest/api/token HTTP/1.0\r\n\r\n',
          'garbage\r\n\r\n',
          'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n',
        ]) {
          t.match(
            await ask(bytes),
            { status: 403, headers: { 'content-length': '0', connection: 'close' }, body: '' },
            bytes,
          )
        }
        t.equal(await counted(reason), before + 2, 'garbage and CONNECT are counted with the same reason')
        t.same(
          daemon.log.filter(({ msg }) => msg === 'request refused'),
          [],
          'no refusal is logged',
        )
      },
    )
  }

  await t.test('E1: a guest whose record enables httpProtocolIpv6 is served', async (t) => {
    await put({ httpProtocolIpv6: 'enabled' })
    await until(async () => (await ask()).status === 200, 'the option')
    t.equal((await ask()).body, 'srv-abcde')
    t.match(await ask('garbage\r\n\r\n'), { status: 400 })
  })
})

/**
 * Sends a request of a guest over IPv6 on a new connection, from any of its addresses or the given one. Returns the
 * response.
 */
async function ask(guest: Guest, path = ID, from?: string): Promise<{ status: number; body: string }> {
  const code = `require('node:http').get({ host: '${SERVICE}', path: process.argv[1], localAddress: process.argv[2], agent: false }, async (response) => {
    console.log(JSON.stringify({ status: response.statusCode, body: Buffer.concat(await response.toArray()).toString() }))
  })`
  return JSON.parse(
    (
      await must([...guest.within, process.execPath, '-e', code, path, ...(from === undefined ? [] : [from])])
    ).toString(),
  ) as { status: number; body: string }
}

const ip = ({ within }: Pick<Guest, 'within'>, words: string) => must([...within, 'ip', '-6', ...words.split(' ')])

/**
 * A hypervisor with both addresses of the service, and a function that adds a guest with the first addresses of a /64
 * on its link.
 */
async function aHypervisor(t: Test) {
  const hypervisor = await makeHypervisor()
  t.teardown(() => hypervisor.remove())
  await ip(hypervisor, `address add ${SERVICE}/128 dev lo`)
  let guests = 0
  const addGuest = async (network: string, address: string) => {
    const n = String(++guests)
    const guest = await hypervisor.addGuest({
      address: `10.88.${n}.2/30`,
      gateway: `10.88.${n}.1`,
      macAddress: `02:00:00:00:00:0${n}`,
    })
    await ip(hypervisor, `address add ${network}::1/64 dev guest${n} nodad`)
    await ip(hypervisor, `address add fe80::1/64 dev guest${n} nodad`) // see giveIpv6
    await ip(guest, `address add ${network}:${address}/64 dev eth0 nodad`)
    await ip(guest, `route add ${SERVICE} via ${network}::1`)
    return guest
  }
  return { hypervisor, addGuest }
}

const [ALPHA, BRAVO] = ['2a02:1348:178:1', '2a02:1348:178:2']
const slaac = (name: string, prefix: string, n: number, change: Record<string, unknown> = {}) =>
  anInstance({
    id: `srv-${name}`,
    options: { httpProtocolIpv6: 'enabled' },
    interfaces: [
      { id: 'int-a', macAddress: MAC, ipv4Addresses: [`10.88.${n}.2/30`], ipv6Prefixes: [`${prefix}::/64`] },
    ],
    ...change,
  })

t.test(
  'a connection whose link is deleted before it is accepted does not end the daemon',
  { skip: withoutNamespaces() },
  async (t) => {
    const { hypervisor, addGuest } = await aHypervisor(t)
    const url = `file:${testDirectory(t)}`
    const store = await openStore({ url })
    await store.put(slaac('bravo', BRAVO, 2))
    const daemon = await startDaemon(
      t,
      {
        IMDS_STORE: url,
        IMDS_LISTEN: `169.254.169.254:80,[${SERVICE}]:80`,
        IMDS_OPERATOR_LISTEN: `[${SERVICE}]:9169`,
        IMDS_OPERATOR_ALLOW: 'fe80::/10',
      },
      hypervisor.within,
    )
    const [alpha, bravo] = [await addGuest(ALPHA, 'a:b:c:d'), await addGuest(BRAVO, 'a:b:c:d')]
    await ip(alpha, 'address add fe80::a/64 dev eth0 nodad')
    await until(async () => (await ask(bravo)).status === 200, 'bravo to be served')

    daemon.process.kill('SIGSTOP') // the kernel keeps new connections
    const code = `(async () => {
      for (const port of [80, 9169]) {
        const socket = require('node:net').connect({ host: '${SERVICE}', port, localAddress: 'fe80::a%eth0' })
        await require('node:events').once(socket, 'connect')
        socket.write('GET ${ID} HTTP/1.1\\r\\n\\r\\n')
      }
      setTimeout(() => process.exit(), 100)
    })()`
    await must([...alpha.within, process.execPath, '-e', code])
    await ip(hypervisor, 'link delete guest1')
    daemon.process.kill('SIGCONT')

    t.same(await ask(bravo), { status: 200, body: 'srv-bravo' })
    t.equal((await daemon.operator('/livez')).status, 200)
    t.same(
      daemon.log.filter(({ level }) => level === 'fatal' || level === 'error'),
      [],
    )
  },
)
