/** The network between imds-api and PostgreSQL loses every packet, and closes no connection. */
import t from 'tap'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { ask } from '../support/load/api-load.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { startSlowLink } from '../support/redis/slow-link.ts'
import { without } from '../support/packages.ts'

t.test(
  'packets to PostgreSQL are lost: requests are refused, and imds-api stops',
  { skip: without('postgres') },
  async (t) => {
    const postgres = await startPostgres(t)
    const url = new URL(postgres.url)
    const link = await startSlowLink(Number(url.port), 0)
    t.teardown(() => link.stop())
    url.port = String(link.port)
    const api = await startImdsApi(t, { IMDS_API_DATABASE: url.href })
    const token = await api.token(CLIENT_OF[ONE])
    t.equal((await ask(api.baseUrl, token, 'POST', 'servers', { image: 'img-deb12' })).status, 202)
    link.freeze()
    t.match(await ask(api.baseUrl, token, 'GET', 'servers'), {
      status: 503,
      body: { errors: ['the database is unreachable: try again'] },
    })
    t.match(await (await fetch(`${api.operatorUrl}/readyz`)).json(), { ready: false })
    const stoppingMs = performance.now()
    t.equal(await api.stop(), 0)
    const tookMs = performance.now() - stoppingMs
    // TCP gives up after a quarter of an hour, systemd after a minute
    t.ok(tookMs < 20_000, `it waits for no answer of PostgreSQL: ${tookMs.toFixed()} ms`)
  },
)
