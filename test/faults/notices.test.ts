/** Invariant 4: lost, repeated or reordered notices change nothing, while guests read their trees. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { startFaultHost, type State } from '../support/netns/fault-host.ts'
import { underFault } from '../support/load/during-fault.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'

const KEYS = keysOf('gb1')
const SCRIPT = readFileSync(new URL('../../src/store/redis/publish.lua', import.meta.url), 'utf8')
const SCRIPT_WITHOUT_NOTICE = SCRIPT.replace("redis.call('PUBLISH'", "tostring('no notice'")

t.test('invariant 4: no guest notices a fault of the notices', { skip: withoutNamespaces() }, async (t) => {
  const host = await startFaultHost(t)
  const {
    redis: { client },
    guests,
  } = host
  /** The arguments of the script for a publish. */
  const publishArguments = ({ text, userData }: State) => [1, KEYS.region, 'put', text, 'set', userData] as const
  const sendNotices = async (ids: readonly string[]) => {
    const pipeline = client.pipeline()
    for (const id of ids) pipeline.publish(KEYS.notices('hv1'), id)
    await pipeline.exec()
  }

  await t.test('notices lost with their connection', (t) =>
    underFault(t, host, 'notices lost: their connection cut', async (operator) => {
      const cut = client.multi().call('CLIENT', 'KILL', 'TYPE', 'pubsub')
      for (const n of guests.keys()) cut.eval(SCRIPT, ...publishArguments(host.next(n)))
      await cut.exec()
      await operator.seesLogLine('store-lost')
      await operator.seesIncrease('imds_resyncs_total{result="completed"}')
    }),
  )

  t.not(SCRIPT_WITHOUT_NOTICE, SCRIPT)
  await t.test('notices that are never sent', (t) =>
    underFault(t, host, 'notices never sent', async (operator) => {
      for (const n of guests.keys()) await client.eval(SCRIPT_WITHOUT_NOTICE, ...publishArguments(host.next(n)))
      await operator.seesIncrease('imds_resyncs_total{result="completed"}')
    }),
  )

  await t.test('notices repeated, a hundred times each', (t) =>
    underFault(t, host, 'notices doubled, 100 times each', async (operator) => {
      for (let i = 0; i < 10; i++) {
        await host.publish()
        await sendNotices(guests.flatMap(({ id }) => Array<string>(100).fill(id)))
      }
      await operator.seesIncrease('imds_notices_total')
    }),
  )

  await t.test('notices out of order and for unknown instances', (t) =>
    underFault(t, host, 'notices out of order, some for unknown instances', async (operator) => {
      for (let i = 0; i < 10; i++) {
        for (const n of guests.keys()) await client.eval(SCRIPT_WITHOUT_NOTICE, ...publishArguments(host.next(n)))
        await sendNotices([...guests.map(({ id }) => id).reverse(), 'srv-nobody', ''])
      }
      await operator.seesIncrease('imds_notices_total')
    }),
  )
})
