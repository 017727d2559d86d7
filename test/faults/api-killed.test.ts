/** imds-api is killed again and again while clients change servers. */
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { ask, startClients, storeEqualsDatabase, watchRevisions } from '../support/load/api-load.ts'
import { databaseOf, startImdsApi, startProcess } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'

/** Each takes some seconds of CPU time. */
const KILLS = process.env['IMDS_TEST_LONG'] === undefined ? 10 : 50
const SERVERS = 8

t.setTimeout(900_000) // a busy machine needs some seconds for each start

t.test('after many kills (-9) of imds-api no acknowledged change is missing in the store', async (t) => {
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  let api = await startImdsApi(t, { IMDS_API_DATABASE: 'embedded', IMDS_STORE: redis.url, IMDS_REGION: 'gb1' })
  const { env, baseUrl } = api
  const token = await api.token(CLIENT_OF[ONE])
  const servers = await Promise.all(
    Array.from(
      { length: SERVERS },
      async () => (await ask(baseUrl, token, 'POST', 'servers', { image: 'img-deb12' })).body as { id: string },
    ),
  )
  const revisions = watchRevisions(t, store)
  const clients = startClients(
    t,
    [baseUrl],
    token,
    servers.map(({ id }) => id),
  )

  const idsOf = async (list: string) => {
    const { status, body } = await ask(baseUrl, token, 'GET', list)
    return status === 200 ? (body as { id: string }[]).map(({ id }) => id) : []
  }

  // Another client makes servers and deletes them. A request without an answer may have had its effect.
  const [made, deleted] = [new Set<string>(), new Set<string>()]
  let isChanging = true as boolean // TypeScript does not see that it changes
  t.teardown(() => {
    isChanging = false
  })
  const changing = (async () => {
    while (isChanging) {
      await sleep(20)
      const created = await ask(baseUrl, token, 'POST', 'servers', { image: 'img-deb12', cloud_ip: true })
      if (created.status === 403) {
        // the limit of the account: those whose creation was not acknowledged count too
        for (const id of await idsOf('servers')) {
          if (!servers.some((server) => server.id === id)) await ask(baseUrl, token, 'DELETE', `servers/${id}`)
        }
        for (const id of await idsOf('cloud_ips')) await ask(baseUrl, token, 'DELETE', `cloud_ips/${id}`)
      }
      if (created.status !== 202) continue
      const {
        id,
        cloud_ips: [cloudIp],
      } = created.body as { id: string; cloud_ips: { id: string }[] }
      made.add(id)
      if ((await ask(baseUrl, token, 'DELETE', `servers/${id}`)).status === 202) deleted.add(id)
      await ask(baseUrl, token, 'DELETE', `cloud_ips/${cloudIp!.id}`)
    }
  })()

  for (let kills = 0; kills < KILLS; kills++) {
    const before = clients.statuses.get(200) ?? 0
    await until(() => (clients.statuses.get(200) ?? 0) > before, 'a change to be acknowledged')
    await sleep(Math.random() * 500)
    api.process.kill('SIGKILL')
    await once(api.process, 'exit')
    api = await startProcess(t, env)
  }
  t.comment(
    `${JSON.stringify([...clients.statuses])} of the clients, ${made.size} servers made and ${deleted.size} deleted`,
  )
  isChanging = false
  await changing
  const acknowledged = await clients.stop()
  t.equal(acknowledged.size, SERVERS)
  t.strictSame(
    [...clients.statuses.keys()].filter((status) => ![0, 200, 503].includes(status)),
    [],
    'no other answers',
  )
  await storeEqualsDatabase(t, databaseOf(env), store, acknowledged)
  t.strictSame(
    (await store.list()).filter(({ id }) => deleted.has(id)),
    [],
    'no server whose deletion was acknowledged',
  )
  t.strictSame(await revisions.stop(), [])
  t.equal(await api.stop(), 0)
})
