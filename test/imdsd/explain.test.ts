/** `imdsctl explain`: which response an address gets, and why. */
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { testDirectory } from '../support/test-directory.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'

t.test('imdsctl explain says what an address gets and why, without secrets', async (t) => {
  const url = `file:${testDirectory(t)}`
  const store = await openStore({ url })
  await store.put(
    anInstance({
      id: 'srv-a',
      interfaces: loopback(1, { ipv6Addresses: ['fd00::1/64'] }),
      options: { httpTokens: 'required' },
    }),
    Buffer.from('a-secret'),
  )
  await store.put(anInstance({ id: 'srv-b', interfaces: loopback(2), options: { httpEndpoint: 'disabled' } }))
  await store.put(anInstance({ id: 'srv-c', interfaces: loopback(3, { network: 'blue' }) }))
  const daemon = await startDaemon(t, { IMDS_STORE: url, IMDS_LISTEN: '127.0.0.1:0,blue=127.0.0.1:0' })
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'the instances')

  const explain = async (...args: string[]) => {
    const { status, stdout, stderr } = await imdsctl(['explain', '--operator', daemon.operatorSocket, ...args])
    return { status, text: stdout, stderr }
  }
  const known = await explain('127.0.0.1')
  t.equal(known.status, 0)
  t.match(
    known.text,
    /^127\.0\.0\.1 on network default: metadata \(200\), since it is srv-a's\ninstance +srv-a, revision 1, on .*\nsession tokens +required\nuser-data +8 bytes\nhop limit +1, not enforced/,
  )
  for (const [args, text] of [
    [
      ['127.0.0.9'],
      /unknown-peer \(503\), since no instance that is known here has this address on network default; the store has no instance with this address on network default: was it published\?/,
    ],
    [['127.0.0.2'], /endpoint-disabled \(403\), since httpEndpoint of its record is disabled/],
    [['127.0.0.3', '--network', 'blue'], /metadata \(200\)/],
    [['127.0.0.3'], /unknown-peer \(503\).*; an instance has it on blue/],
    [
      ['127.0.0.3', '--network', 'red'],
      /^127\.0\.0\.3 on network red: no-listener, since this daemon does not serve network red; it serves default, blue$/m,
    ],
  ] as const) {
    const explained = await explain(...args)
    t.match(explained.text, text)
    t.notMatch(explained.text, /secret/)
  }
  t.match(JSON.parse((await explain('127.0.0.1', '--json')).text), {
    answer: 'metadata',
    status: 200,
    instance: { id: 'srv-a' },
    hopLimit: { limit: 1, enforced: false },
  })
  t.match(
    await explain('srv-a'),
    {
      status: 0,
      text: /^127\.0\.0\.1 on network default: metadata \(200\)[^]*\nfd00::1 on network default: no-listener/,
    },
    'the id of an instance: each of its addresses',
  )
  t.match(await explain('srv-x'), { status: 1, stderr: /does not serve srv-x: the store has no record of srv-x/ })
  t.match(await explain('10.0.0.2/8'), { status: 64, stderr: /"10\.0\.0\.2\/8" is neither an address nor an id/ })
  t.match(await imdsctl(['explain', '--operator', '127.0.0.1:1', '127.0.0.1']), {
    status: 69,
    stderr: /cannot be reached/,
  })
})
