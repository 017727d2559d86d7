/**
 * `imdsctl explain`: which response an address gets, and why.
 */
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { run } from '../support/programs/processes.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { IMDSCTL } from '../support/programs/imds.ts'

t.test('imdsctl explain says what an address gets and why, without secrets', async (t) => {
  const url = `file:${t.testdir()}`
  const store = await openStore({ url })
  const nic = (n: number, address: string) => ({
    id: `int-${String(n)}`,
    macAddress: `02:24:19:00:00:0${String(n)}`,
    ipv4Addresses: [`${address}/8`],
  })
  await store.put(
    anInstance({
      id: 'srv-a',
      interfaces: [{ ...nic(1, '127.0.0.1'), ipv6Addresses: ['fd00::1/64'] }],
      options: { httpTokens: 'required' },
    }),
    Buffer.from('a-secret'),
  )
  await store.put(anInstance({ id: 'srv-b', interfaces: [nic(2, '127.0.0.2')], options: { httpEndpoint: 'disabled' } }))
  await store.put(
    anInstance({
      id: 'srv-c',
      interfaces: [{ ...nic(3, '127.0.0.3'), network: 'blue' }],
      sealedAt: '2026-11-20T00:00:00Z',
    }),
    Buffer.from('a-secret'),
  )
  const daemon = await startDaemon({ IMDS_STORE: url, IMDS_LISTEN: '127.0.0.1:0,blue=127.0.0.1:0' })
  t.teardown(() => daemon.stop())
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'the instances')

  const operator = `127.0.0.1:${String(daemon.operatorPort)}`
  const explain = async (...args: string[]) => {
    const { status, stdout, stderr } = await run([
      process.execPath,
      IMDSCTL,
      'explain',
      '--operator',
      operator,
      ...args,
    ])
    return { status, text: stdout.toString(), stderr }
  }
  const known = await explain('127.0.0.1')
  t.equal(known.status, 0)
  t.match(
    known.text,
    /^127\.0\.0\.1 on network default: metadata \(200\), since it is srv-a's\ninstance +srv-a, revision 1, on .*\nsession tokens required\nuser-data +8 bytes\nhop limit +1, not enforced/,
  )
  for (const [args, text] of [
    [['127.0.0.2'], /endpoint-disabled \(403\), since httpEndpoint of its record is disabled/],
    [['fd00::1'], /ipv6-disabled \(403\), since httpProtocolIpv6/],
    [
      ['127.0.0.9'],
      /unknown-peer \(503\), since no instance that is known here has this address on network default; the store has no instance with this address on network default: was it published\?/,
    ],
    [['127.0.0.3'], /unknown-peer \(503\).*; an instance has it on blue/],
    [['127.0.0.3', '--network', 'blue'], /metadata \(200\)[\s\S]*user-data +sealed since 2026-11-20T00:00:00Z/],
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
    await explain('srv-a', '--store', url),
    { status: 0, text: /^127\.0\.0\.1 on network default: metadata \(200\)/ },
    'the id of an instance',
  )
  t.match(await explain('nonsense'), { status: 64, stderr: /"nonsense" is not an address/ })
  t.match(await run([process.execPath, IMDSCTL, 'explain', '--operator', '127.0.0.1:1', '127.0.0.1']), {
    status: 69,
    stderr: /cannot be reached/,
  })
})
