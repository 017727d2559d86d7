/** Invariant 6 and part F of the contract: nine guests boot without a failure while a tenth floods. */
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { bootDuringFlood, FLOODS } from '../support/load/flood.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { testDirectory } from '../support/test-directory.ts'

const SECONDS = 3
const addressOf = (i: number) => `127.0.0.${i + 2}`

t.test('invariant 6, F1, F2: while one guest floods, nine others boot and no request of theirs fails', async (t) => {
  const url = `file:${testDirectory(t)}`
  const store = await openStore({ url })
  for (let i = 0; i < 10; i++) {
    const nic = {
      id: `int-${i}`,
      macAddress: `02:24:19:00:00:0${i}`,
      ipv4Addresses: [`${addressOf(i)}/8`],
    }
    await store.put(anInstance({ id: `srv-${i}`, interfaces: [nic] }), Buffer.alloc(16_384, 'x'))
  }
  const daemon = await startDaemon(t, { IMDS_STORE: url, IMDS_GUEST_BURST: '600', IMDS_GUEST_CONNECTIONS: '64' })
  await until(async () => (await daemon.get('/latest/', addressOf(9))).status === 200, 'the instances')
  const guests = Array.from({ length: 9 }, (_, i) => addressOf(i + 1))
  for (const flood of FLOODS) {
    const { boots, requests, failed, flooded } = await bootDuringFlood(
      flood,
      daemon.guestPort,
      addressOf(0),
      guests,
      SECONDS,
    )
    t.comment(
      `${flood ?? 'no flood'}: ${boots} boots, ${requests} requests, ${JSON.stringify(failed)}; ${flooded} responses to the flood`,
    )
    t.same(failed, {}, flood ?? 'no flood')
    t.ok(boots >= 9 && requests > 0, 'every guest booted')
  }
  t.ok(
    (await daemon.metric('imds_requests_total{route="unknown",method="GET",status="503",reason="over-share"}')) > 0,
    'the flood exceeded its share',
  )
  t.same(
    daemon.log.filter(({ level }) => level === 'error' || level === 'fatal'),
    [],
  )
})
