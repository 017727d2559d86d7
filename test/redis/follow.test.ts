import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until } from '../support/daemon.ts'
import { anInstance } from '../support/instance.ts'
import { startRedis } from '../support/redis.ts'

t.test('a publish reaches the guest\'s next GET, and a change of it too', async (t) => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const daemon = await startDaemon({ IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' })
  t.teardown(() => daemon.stop())
  const store = await openStore({ url: redis.url, region: 'gb1' })
  t.teardown(() => store.close())
  t.equal((await daemon.get('/latest/meta-data/instance-id')).status, 503)
  const interfaces = [{ id: 'int-aaaaa', macAddress: '02:00:00:00:00:01', ipv4Addresses: ['127.0.0.1/8'] }]
  t.match(await store.put(anInstance({ interfaces }), Buffer.from('one')), { result: 'published' })
  await until(async () => (await daemon.get('/latest/user-data')).body.toString() === 'one', 'the user-data')
  t.match(await store.put(anInstance({ interfaces, revision: 2 }), Buffer.from([0, 255, 31, 139])), { result: 'published' })
  await until(async () => (await daemon.get('/latest/user-data')).body.equals(Buffer.from([0, 255, 31, 139])), 'the new user-data')
  t.equal((await daemon.operator('/readyz')).status, 200)
})
