/**
 * Clients that follow events while many others change resources, connections are cut, imds-api is killed and PostgreSQL
 * is restarted.
 */
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import t from 'tap'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { ask } from '../support/load/api-load.ts'
import { startImdsApi, startProcess } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { readEvents, type ReadEvent } from '../support/programs/event-reader.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { without } from '../support/packages.ts'

const IS_LONG = process.env['IMDS_TEST_LONG'] !== undefined
/** Each fault takes some seconds of CPU time. */
const [CHANGES, FAULTS] = IS_LONG ? [10_000, 30] : [300, 3]
const CLIENTS = 20
const READERS = 3

t.setTimeout(900_000)

t.test(
  'each event is read once and in order, whatever is cut, killed or restarted',
  { skip: without('postgres') },
  async (t) => {
    const postgres = await startPostgres(t)
    const first = await startImdsApi(t, { IMDS_API_DATABASE: postgres.url })
    const second = await startProcess(t, { ...first.env, IMDS_API_LISTEN: '127.0.0.1:0' })
    const fixed = second.baseUrl.replace('http://', '')
    const programs = [
      { now: first, env: first.env, url: first.baseUrl },
      { now: second, env: { ...second.env, IMDS_API_LISTEN: fixed }, url: second.baseUrl },
    ]
    const anyUrl = () => programs[Math.floor(Math.random() * programs.length)]!.url
    const database = new pg.Client(postgres.url)
    await database.connect()
    await database.query('update accounts set server_groups_limit = 1000000')
    await database.end()
    const token = await first.token(CLIENT_OF[ONE])
    const begin = await readEvents(first.baseUrl, token, 'now')

    const [acknowledged, unknown] = [new Set<string>(), { count: 0 }]
    let isDone = false as boolean // TypeScript does not see that it changes
    const clients = Array.from({ length: CLIENTS }, async () => {
      while (acknowledged.size < CHANGES) {
        const { status, body } = await ask(anyUrl(), token, 'POST', 'server_groups', { name: 'followed' })
        if (status === 202) acknowledged.add((body as { id: string }).id)
        else unknown.count++
        if (status !== 202) await sleep(20)
      }
    })
    const counts = { kills: 0, restarts: 0, cuts: 0 }
    const readers = Array.from({ length: READERS }, () => follow(anyUrl, token, begin.next, () => isDone, counts))
    const faults = (async () => {
      for (let fault = 0; fault < FAULTS; fault++) {
        const next = ((fault + 1) * CHANGES) / (FAULTS + 1)
        while (acknowledged.size < next) await sleep(20)
        if (fault % 3 === 2) {
          await postgres.shutDown()
          await postgres.restart()
          counts.restarts++
        } else {
          const program = programs[fault % 3]!
          program.now.process.kill('SIGKILL')
          await once(program.now.process, 'exit')
          program.now = await startProcess(t, program.env)
          counts.kills++
        }
      }
    })()
    await Promise.all([...clients, faults])
    const all: ReadEvent[] = []
    for (let page = await readEvents(first.baseUrl, token, begin.next); page.events.length > 0;) {
      all.push(...page.events)
      page = await readEvents(first.baseUrl, token, page.next)
    }
    await until(() => readers.every(({ events }) => events.length >= all.length), 'the readers to have all events')
    isDone = true
    for (const { ended, stop } of readers) {
      stop()
      await ended
    }
    t.comment(JSON.stringify({ ...counts, acknowledged: acknowledged.size, unanswered: unknown.count }))
    t.strictSame(
      all.map(({ id }) => Number(id.split('-')[1])),
      all.map((_one, i) => Number(begin.next.split('-')[1]) + 1 + i),
      'no number is missing',
    )
    // without URLs, which differ by process, and without what an event affects, which is computed when it is read
    const factsOf = (events: readonly ReadEvent[]) =>
      JSON.stringify(events.map(({ id, action, resource }) => [id, action, resource.id]))
    for (const { events } of readers) t.ok(factsOf(events) === factsOf(all), 'a reader has each once')
    const made = all.filter(({ resource, action }) => resource.resource_type === 'server_group' && action === 'create')
    const groups = (await ask(first.baseUrl, token, 'GET', 'server_groups')).body as { id: string; name: string }[]
    t.strictSame(
      made.map(({ resource }) => resource.id).sort(),
      groups
        .filter(({ name }) => name === 'followed')
        .map(({ id }) => id)
        .sort(),
      'each group that was made has an event, and no other',
    )
    t.ok([...acknowledged].every((id) => made.some(({ resource }) => resource.id === id)))
    t.ok(counts.kills > 0 && counts.restarts > 0 && counts.cuts > 0)
  },
)

/** Follows events from a cursor, and continues on any process whenever its connection is lost. It cuts some itself. */
function follow(anyUrl: () => string, token: string, from: string, isDone: () => boolean, counts: { cuts: number }) {
  const events: ReadEvent[] = []
  let abort = new AbortController()
  const run = async () => {
    for (let cursor = from; !isDone();) {
      abort = new AbortController()
      const cut = setTimeout(() => {
        counts.cuts++
        abort.abort()
      }, Math.random() * 1_000)
      try {
        const page = await readEvents(anyUrl(), token, cursor, '&wait=60', abort.signal)
        events.push(...page.events)
        cursor = page.next
      } catch {
        await sleep(50) // the connection is lost
      }
      clearTimeout(cut)
    }
  }
  const ended = run()
  return { events, ended, stop: () => abort.abort() }
}
