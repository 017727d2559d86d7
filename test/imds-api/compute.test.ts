/**
 * The compute interface: hypervisors fetch the actions of their servers in order, report outcomes, and the states
 * follow.
 */
import { sql } from 'kysely'
import { pino } from 'pino'
import t from 'tap'
import { Waiters } from '../../src/limits/waiters.ts'
import { COMPUTE_CHANNEL } from '../../src/imds-api/changes/handshake.ts'
import { purgeActions, readActionQueue } from '../../src/imds-api/changes/action-queue.ts'
import { readHypervisorUsage } from '../../src/imds-api/changes/hypervisors.ts'
import type { Waiter } from '../../src/limits/waiter.ts'
import { tryLock } from '../../src/imds-api/database/advisory-locks.ts'
import { OUTBOX_CHANNEL } from '../../src/imds-api/database/outbox.ts'
import { buildListener } from '../../src/imds-api/database/notifications.ts'
import { setClockAhead } from '../support/clock.ts'
import { withoutDetails } from '../support/error-bodies.ts'
import { aRegion, ONE } from '../support/fixtures/region.ts'
import { random } from '../support/fixtures/generated-records.ts'
import { aClient } from '../support/programs/api-client.ts'
import { anApi, type AuditLine, type Method, openTransaction, setRow } from '../support/programs/api.ts'
import { aComputeServer } from '../support/programs/compute.ts'
import { until } from '../support/programs/daemon.ts'
import { executed } from '../tools/documents.ts'

interface Action {
  readonly id: number
  readonly action: string
  readonly image: string | null
  readonly console: { token: string; expires: string } | null
  readonly server: { id: string; revision: number }
}
interface Member extends Record<string, unknown> {
  id: string
  status: string
  snapshots: { id: string; status: string }[]
  cloud_ips: { id: string; status: string }[]
  interfaces: { id: string }[]
  errors: string[]
}

const region = aRegion({
  accounts: aRegion().accounts.map((account) => ({ ...account, ram_limit: 65_536 })),
  address_pools: { ...aRegion().address_pools, ipv6: { '10.240.0.0/16': '2001:db8:100::/48' } },
})
const api = await anApi(t, { region, compute: 'reported' })
const { db, pool } = api.database
const store = await api.startPublisher()

/** Two compute interfaces on one database, as two processes of imds-api have them. */
const outcomes: string[] = []
const warnings: string[] = []
const audit: AuditLine[] = []
/** How many requests have waited for an action. */
let waited = 0
class CountedWaiters extends Waiters {
  override add(hypervisor: string, waiter: Waiter): void {
    waited++
    super.add(hypervisor, waiter)
  }
}
const computes = [0, 1].map(() => {
  const waiters = new CountedWaiters()
  const listener = buildListener(
    () => api.database.connect(),
    COMPUTE_CHANNEL,
    (hypervisor) => waiters.wake(hypervisor),
  )
  listener.start()
  t.teardown(() => listener.stop())
  return aComputeServer(t, api, {
    waiters,
    count: (outcome) => outcomes.push(outcome),
    audit: (line) => audit.push(JSON.parse(JSON.stringify(line)) as AuditLine),
    log: pino({ level: 'warn' }, { write: (line) => warnings.push(line) }),
  })
})
const compute = async (method: Method, url: string, payload?: object, process = 0) => {
  const { statusCode, body } = await computes[process]!.inject({
    method,
    url,
    ...(payload !== undefined && { payload }),
  })
  return { status: statusCode, body: withoutDetails(JSON.parse(body)) as Member }
}
const fetchActions = async (hypervisor = 'hv-1', process = 0) =>
  (await compute('GET', `/hypervisors/${hypervisor}/actions`, undefined, process)).body as unknown as Action[]
const report = (id: number, outcome: 'succeeded' | 'failed', fault?: string, hypervisor = 'hv-1') =>
  compute('POST', `/hypervisors/${hypervisor}/actions/${id}/outcome`, {
    outcome,
    ...(fault !== undefined && { fault }),
  })
const { call, create: make } = aClient<Member>(api)
const act = async (id: string, action: string) => call('POST', `servers/${id}/${action}`)
const statusOf = async (id: string) => (await call('GET', `servers/${id}`)).body.status
const becomes = (id: string, status: string) =>
  until(async () => (await statusOf(id)) === status, `${id} to be ${status}`)
const recordOf = async (id: string) =>
  (await store.get(id))?.document as { hypervisors: string[]; sealedAt?: string; revision: number } | undefined
const freeOf = async (hypervisor: string) =>
  (await readHypervisorUsage(db)).find(({ name }) => name === hypervisor)!.free
/** The first action of a server without an outcome. */
const unfinished = (id: string) =>
  db
    .selectFrom('compute_actions')
    .select('id')
    .where('server_id', '=', id)
    .where('finished_at', 'is', null)
    .orderBy('id')
    .executeTakeFirstOrThrow()
const expireGiven = () =>
  pool.query("update compute_actions set given_out_at = now() - interval '1 hour' where finished_at is null")
const setClockBack = () =>
  pool.query("update compute_actions set given_out_at = now() + interval '1 day' where finished_at is null")

/** The answer to a request that waits. `until` gives up before 60 s: one that waits so long has to be woken. */
async function woken(waiting: Promise<{ body: unknown }>): Promise<Action[]> {
  let body: unknown
  void waiting.then((answer) => {
    body = answer.body
  })
  await until(() => body !== undefined, 'the request to be answered')
  return body as Action[]
}

/** Carries out all that waits for a hypervisor, as an agent does. */
async function carryOut(hypervisor = 'hv-1'): Promise<string[]> {
  await api.drained() // an action is given out once its server is published
  const done: string[] = []
  for (let actions = await fetchActions(hypervisor); actions.length > 0; actions = await fetchActions(hypervisor)) {
    for (const { id, action } of actions) {
      await report(id, 'succeeded', undefined, hypervisor)
      done.push(action)
    }
  }
  return done
}
/** Creates a server on hv-1, and waits until its record is published. */
async function create(body: object = {}): Promise<Member> {
  await db.updateTable('hypervisors').set({ ram: 1 }).where('name', '!=', 'hv-1').execute()
  const server = await make('servers', { image: 'img-deb12', zone: 'gb1-a', ...body })
  await db.updateTable('hypervisors').set({ ram: 65_536 }).execute()
  await api.drained()
  return server
}
async function activeServer(body: object = {}): Promise<string> {
  const { id } = await create(body)
  await carryOut()
  await becomes(id, 'active')
  return id
}

t.test('a hypervisor gets what it needs to create a server, and the other hypervisors get nothing', async (t) => {
  const server = await create({ server_type: '4gb.ssd', disk_encrypted: true })
  t.strictSame([await fetchActions('hv-2'), await fetchActions('hv-3')], [[], []])
  const [action, more] = await fetchActions()
  t.equal(more, undefined)
  t.match(action, {
    action: 'create',
    image: null,
    console: null,
    requested_at: /Z$/,
    server: {
      id: server.id,
      revision: 1,
      image: 'img-deb12',
      server_type: { id: 'typ-large', handle: '4gb.ssd', cores: 2, ram: 4096, disk_size: 61_440 },
      disk_encrypted: true,
      compatibility_mode: false,
      interfaces: [
        {
          id: server.interfaces[0]!.id,
          mac_address: /^02:24:19:/,
          ipv4_address: /^10\.240\./,
          prefix_length: 16,
          ipv6_address: /^2001:db8:100:\d+:24:19ff:fe00:/,
          ipv6_prefix: /^2001:db8:100:\d+::\/64$/,
        },
      ],
    },
  })
  t.strictSame(await fetchActions(), [], 'it is given out once')
  await report(action!.id, 'succeeded')
})

t.test('a server is active when it is reported as created and its record is stored, in either order', async (t) => {
  const first = await create({ cloud_ip: true })
  await api.drained()
  t.ok(await recordOf(first.id), 'its guest can read metadata before it is reported')
  t.match((await call('GET', `servers/${first.id}`)).body, {
    status: 'creating',
    cloud_ips: [{ status: 'reserved' }],
    started_at: null,
  })
  await carryOut()
  await becomes(first.id, 'active')
  t.match((await call('GET', `servers/${first.id}`)).body, { cloud_ips: [{ status: 'mapped' }] })

  const second = await create()
  const [action] = await fetchActions()
  await db.updateTable('servers').set({ publish_fault: 'x' }).where('id', '=', second.id).execute()
  await pool.query("insert into outbox (server_id, account_id, retry_at) values ($1, '', now() + interval '50 s')", [
    second.id,
  ])
  await report(action!.id, 'succeeded')
  await becomes(second.id, 'active') // the outcome has it published again
})

t.test('a hypervisor gets the action create once the store has accepted the record', async (t) => {
  const { id } = await create()
  await pool.query("insert into outbox (server_id, account_id, retry_at) values ($1, '', now() + interval '1 hour')", [
    id,
  ]) // as for a record that the store refuses
  t.strictSame(await fetchActions(), [])
  t.match(await readActionQueue(db), { waiting: 1, unfetched: 0 })
  const waiting = compute('GET', '/hypervisors/hv-1/actions?wait=60')
  await pool.query('update outbox set retry_at = null')
  await pool.query(`notify ${OUTBOX_CHANNEL}`)
  const [action] = await woken(waiting)
  t.match(action, { action: 'create', server: { id } })
  await report(action!.id, 'succeeded')
})

t.test('no action of a server that was never published is given out: its id may be that of another', async (t) => {
  const id = await activeServer()
  const other = await openTransaction(db)
  await sql`select ${tryLock('publish', id)}`.execute(other) // so that it is not published now
  await setRow(db, 'servers', id, { is_published: false })
  t.equal((await call('DELETE', `servers/${id}`)).status, 202)
  t.strictSame(await fetchActions(), [])
  await other.commit().execute()
  await api.drained()
  t.strictSame(await carryOut(), ['delete'])
  await becomes(id, 'deleted')
})

t.test('a failed create makes the server failed, and gives its cloud IP back', async (t) => {
  const {
    id,
    cloud_ips: [cloudIp],
  } = await create({ cloud_ip: true })
  const [action] = await fetchActions()
  t.match(await report(action!.id, 'failed', 'no space'), {
    status: 200,
    body: { id: action!.id, server: id, action: 'create', outcome: 'failed', fault: 'no space' },
  })
  t.match(await call('GET', `servers/${id}`), { body: { status: 'failed', cloud_ips: [] } })
  t.match(await call('GET', `cloud_ips/${cloudIp!.id}`), { body: { status: 'unmapped' } })
  await api.drained()
  t.equal(await statusOf(id), 'failed', 'its publish does not make it active')
  t.ok(warnings.some((line) => line.includes('no space') && line.includes(id)))
  t.equal((await act(id, 'start')).status, 409)
  t.equal((await call('DELETE', `servers/${id}`)).status, 202)
  t.strictSame(await carryOut(), ['delete'])
  await becomes(id, 'deleted')
})

t.test('a server keeps its record and its addresses until it is reported as deleted', async (t) => {
  const id = await activeServer()
  t.match(await call('DELETE', `servers/${id}`), { status: 202, body: { status: 'deleting' } })
  await api.drained()
  t.equal(await statusOf(id), 'deleting')
  t.ok(await recordOf(id))
  const [action] = await fetchActions()
  await report(action!.id, 'failed', 'the disk is busy')
  t.equal(await statusOf(id), 'failed')
  await call('DELETE', `servers/${id}`)
  t.strictSame(await carryOut(), ['delete'])
  await becomes(id, 'deleted')
  t.equal(await recordOf(id), undefined)
  t.strictSame((await call('GET', `servers/${id}`)).body.interfaces, [])
})

t.test('the actions of one server are given out one after the other, without holding up those of others', async (t) => {
  const [id, other] = [await activeServer(), await activeServer()]
  for (const action of ['stop', 'start', 'reboot']) t.equal((await act(id, action)).status, 202, action)
  t.equal((await act(other, 'reset')).status, 202)
  t.equal(await statusOf(id), 'active', 'nothing is reported yet')
  const first = await fetchActions()
  t.strictSame(
    first.map(({ action, server }) => [server.id, action]),
    [
      [id, 'stop'],
      [other, 'reset'],
    ],
  )
  t.strictSame(await fetchActions('hv-1', 1), [], 'the other process gives out nothing twice')
  await report(first[0]!.id, 'succeeded')
  t.equal(await statusOf(id), 'inactive')
  const second = await fetchActions('hv-1', 1)
  t.strictSame(
    second.map(({ action, server }) => [server.id, action]),
    [[id, 'start']],
  )
  await report(second[0]!.id, 'succeeded')
  t.equal(await statusOf(id), 'active')
  await report(first[1]!.id, 'succeeded')
  t.strictSame(await carryOut(), ['reboot'])
})

t.test('what is possible depends on the state after the actions that wait', async (t) => {
  const id = await activeServer()
  await act(id, 'shutdown')
  t.match(await act(id, 'reboot'), {
    status: 409,
    body: { errors: [`${id} is inactive once the actions that wait are done: reboot is not possible`] },
  })
  t.equal((await act(id, 'start')).status, 202)
  t.equal((await act(id, 'reboot')).status, 202)
  t.strictSame(await carryOut(), ['shutdown', 'start', 'reboot'])
})

t.test('a failed action leaves the state as it was; a failed snapshot is a failed image', async (t) => {
  const id = await activeServer()
  const failNext = async () => {
    const [action] = await fetchActions()
    await report(action!.id, 'failed')
    return action!
  }
  await act(id, 'stop')
  await failNext()
  t.equal(await statusOf(id), 'active')
  t.match((await act(id, 'snapshot')).body.snapshots, [{ status: 'creating' }])
  const { image } = await failNext()
  t.match((await call('GET', `servers/${id}`)).body.snapshots, [{ id: image, status: 'failed' }])
  t.match(await call('POST', 'servers', { image }), { status: 422 })
  const { body } = await act(id, 'activate_console')
  const { console } = await failNext()
  t.strictSame(
    console,
    { token: body['console_token'], expires: body['console_token_expires'] },
    'the hypervisor gets the token of the response',
  )
  t.match((await call('GET', `servers/${id}`)).body, { console_url: null, console_token_expires: null })
})

t.test('a hypervisor deletes a snapshot of a deleted server whose hypervisor is gone from the region', async (t) => {
  const id = await activeServer()
  const { snapshots } = (await act(id, 'snapshot')).body
  await call('DELETE', `servers/${id}`)
  await carryOut()
  await becomes(id, 'deleted')
  const image = snapshots[0]!.id
  t.equal((await call('DELETE', `images/${image}`)).status, 202)
  t.strictSame(await fetchActions('hv-2'), [])
  await db.updateTable('hypervisors').set({ removed_at: new Date() }).where('name', '=', 'hv-1').execute()
  t.teardown(() => db.updateTable('hypervisors').set({ removed_at: null }).where('name', '=', 'hv-1').execute())
  const [action] = await fetchActions('hv-2')
  t.match(action, { action: 'delete_image', image })
  t.match(await report(action!.id, 'succeeded', undefined, 'hv-2'), { status: 200 })
  t.equal((await call('GET', `images/${image}`)).status, 404)
})

t.test('a snapshot is available, and an image deleted, when that is reported; the token is gone then', async (t) => {
  const id = await activeServer()
  const {
    body: {
      snapshots: [snapshot],
    },
  } = await act(id, 'snapshot')
  await act(id, 'activate_console')
  t.equal((await call('DELETE', `images/${snapshot!.id}`)).status, 409, 'not while it is made')
  t.strictSame(await carryOut(), ['snapshot', 'activate_console'])
  t.match((await call('GET', `images/${snapshot!.id}`)).body, { status: 'available' })
  t.equal((await pool.query('select 1 from compute_actions where console_token is not null')).rowCount, 0)
  t.match(await call('DELETE', `images/${snapshot!.id}`), { status: 202, body: { status: 'deleting' } })
  t.match(await call('GET', `images/${snapshot!.id}`), { status: 200, body: { status: 'deleting' } })
  t.match(await call('POST', 'servers', { image: snapshot!.id }), { status: 422 })
  await call('DELETE', `servers/${id}`)
  const [action] = await fetchActions()
  t.match(action, { action: 'delete_image', image: snapshot!.id })
  await report(action!.id, 'succeeded')
  t.equal((await call('GET', `images/${snapshot!.id}`)).status, 404)
  await carryOut()
  await becomes(id, 'deleted')
})

t.test('a stop closes the console that was open, and not one that was asked for after it', async (t) => {
  const id = await activeServer()
  await act(id, 'activate_console')
  await carryOut()
  await act(id, 'stop')
  t.match((await call('GET', `servers/${id}`)).body, { status: 'active', console_url: /^https:/ }, 'it is still active')
  await carryOut()
  t.match((await call('GET', `servers/${id}`)).body, {
    status: 'inactive',
    console_url: null,
    console_token_expires: null,
  })
  for (const action of ['start', 'stop', 'start']) await act(id, action)
  const { body } = await act(id, 'activate_console')
  t.match(body, { status: 'inactive', console_url: /^https:/ })
  const done: Action[] = []
  for (let [next] = await fetchActions(); next !== undefined; [next] = await fetchActions()) {
    done.push(next)
    await report(next.id, 'succeeded')
  }
  t.match(
    done,
    [{}, {}, {}, { action: 'activate_console', console: { token: body['console_token'], expires: String } }],
    'the hypervisor gets the token',
  )
  t.match((await call('GET', `servers/${id}`)).body, {
    status: 'active',
    console_url: /^https:/,
    console_token_expires: body['console_token_expires'],
  })
})

t.test('a console that failed leaves the token of the one that waits', async (t) => {
  const id = await activeServer()
  await act(id, 'activate_console')
  const [first] = await fetchActions()
  const { body } = await act(id, 'activate_console')
  await report(first!.id, 'failed')
  const [second] = await fetchActions()
  t.match(second, { console: { token: body['console_token'], expires: body['console_token_expires'] } })
  await report(second!.id, 'failed')
  t.match((await call('GET', `servers/${id}`)).body, { console_url: null, console_token_expires: null })
})

t.test('the outcomes of actions do not bring back a server that is being deleted', async (t) => {
  const id = await activeServer()
  await act(id, 'stop')
  const [stop] = await fetchActions()
  await call('DELETE', `servers/${id}`)
  t.strictSame(await fetchActions(), [], 'the delete waits for the stop that a hypervisor has got')
  await report(stop!.id, 'succeeded')
  t.strictSame(await carryOut(), ['delete'])
  await becomes(id, 'deleted')
})

t.test('a delete supersedes the power actions that wait: it is next, whatever waited before it', async (t) => {
  const id = await activeServer()
  await act(id, 'activate_console')
  await pool.query("insert into compute_actions (server_id, kind) select $1, 'reboot' from generate_series(1, 300)", [
    id,
  ])
  await call('DELETE', `servers/${id}`)
  t.strictSame(
    (await fetchActions()).map(({ action }) => action),
    ['delete'],
  )
  const { rows } = await pool.query(
    `
        select distinct outcome, fault, console_token
        from compute_actions
        where server_id = $1 and kind in ('reboot', 'activate_console')`,
    [id],
  )
  t.strictSame(rows, [{ outcome: 'failed', fault: 'superseded by the deletion of the server', console_token: null }])
  await expireGiven()
  t.strictSame(await carryOut(), ['delete'])
  await becomes(id, 'deleted')
})

t.test('a delete waits for a snapshot, and for the actions before the snapshot', async (t) => {
  const id = await activeServer()
  for (const action of ['stop', 'snapshot', 'start', 'reboot']) await act(id, action)
  await call('DELETE', `servers/${id}`)
  t.strictSame(await carryOut(), ['stop', 'snapshot', 'delete'])
  await becomes(id, 'deleted')
})

t.test('a server has at most 16 actions without an outcome, and an account as many as its limit', async (t) => {
  const [id, other] = [await activeServer(), await activeServer()]
  const answers = await Promise.all(Array.from({ length: 20 }, () => act(id, 'reboot')))
  t.equal(answers.filter(({ status }) => status === 202).length, 16)
  const refused = (error: string) => ({ status: 403, body: { error_name: 'account_limit_reached', errors: [error] } })
  t.match(
    answers.find(({ status }) => status !== 202),
    refused(`${id} has 16 actions without an outcome, and the most are 16: try again when some have ended`),
  )
  t.equal((await act(other, 'reboot')).status, 202)
  await db.updateTable('accounts').set({ open_actions_limit: 18 }).where('id', '=', ONE).execute()
  const more = await Promise.all(Array.from({ length: 4 }, () => act(other, 'reset')))
  t.equal(more.filter(({ status }) => status === 202).length, 1)
  t.match(
    more.find(({ status }) => status !== 202),
    refused('the account has 18 actions without an outcome, and its limit is 18: try again when some have ended'),
  )
  for (const one of [id, other])
    t.equal((await call('DELETE', `servers/${one}`)).status, 202, 'a delete is not limited')
  t.strictSame(await carryOut(), ['delete', 'delete'])
  await db.updateTable('accounts').set({ open_actions_limit: 1000 }).where('id', '=', ONE).execute()
})

t.test('an action whose outcome does not come in time is given out again', async (t) => {
  const id = await activeServer()
  await act(id, 'reboot')
  const [given] = await fetchActions()
  t.strictSame(await fetchActions(), [])
  for (const expire of [expireGiven, setClockBack]) {
    await expire()
    t.strictSame(
      (await fetchActions('hv-1', 1)).map((action) => action.id),
      [given!.id],
    )
  }
  t.match(await report(given!.id, 'succeeded'), { status: 200 })
  await expireGiven()
  t.strictSame(await fetchActions(), [])
})

t.test('a report counts once: the same again changes nothing, another one is 409, a foreign one 404', async (t) => {
  const id = await activeServer()
  await act(id, 'stop')
  const waiting = await unfinished(id)
  t.match(
    await report(waiting.id, 'succeeded'),
    { status: 404, body: { errors: [`the action ${waiting.id} does not exist`] } },
    'before it was given out',
  )
  const [given] = await fetchActions()
  t.equal(given!.id, waiting.id)
  t.match(await report(given!.id, 'succeeded', undefined, 'hv-2'), { status: 404 })
  const before = outcomes.length
  t.match(await report(given!.id, 'succeeded'), { status: 200 })
  await act(id, 'start')
  await carryOut()
  t.match(await report(given!.id, 'succeeded', 'twice'), { status: 200, body: { outcome: 'succeeded', fault: null } })
  t.equal(await statusOf(id), 'active', 'the repeated stop does not stop it')
  t.match(await report(given!.id, 'failed'), {
    status: 409,
    body: { errors: [`the action ${given!.id} has succeeded already`] },
  })
  t.equal(outcomes.length, before + 2)
  t.match(await report(999_999, 'succeeded'), { status: 404 })
  t.match(await compute('GET', '/hypervisors/hv-9/actions'), {
    status: 404,
    body: { errors: ['the hypervisor hv-9 does not exist'] },
  })
  t.match(await compute('POST', `/hypervisors/hv-1/actions/${given!.id}/outcome`, { outcome: 'done' }), {
    status: 422,
  })
  t.equal((await computes[0]!.inject({ method: 'HEAD', url: '/hypervisors/hv-1/actions' })).statusCode, 405)
  for (const path of ['/hypervisors/hv-1/actions?wait=x', '/hypervisors/hv-1/actions?wait=-1'])
    t.match(
      await compute('GET', path),
      { status: 422, body: { errors: ['wait must be a number of seconds of one or two digits'] } },
      path,
    )
})

t.test('a request that waits is answered when an action comes, whichever process takes the request', async (t) => {
  const id = await activeServer()
  for (const process of [0, 1]) {
    const waiting = compute('GET', '/hypervisors/hv-1/actions?wait=60', undefined, process)
    await act(id, 'reboot')
    const actions = await woken(waiting)
    t.strictSame(
      actions.map(({ action }) => action),
      ['reboot'],
    )
    const next = compute('GET', '/hypervisors/hv-1/actions?wait=60', undefined, process)
    await act(id, 'reset')
    await report(actions[0]!.id, 'succeeded')
    t.strictSame(
      (await woken(next)).map(({ action }) => action),
      ['reset'],
      'the outcome of one gives out the next',
    )
    await report((await unfinished(id)).id, 'succeeded')
  }
})

t.test('during a live migration the record names both hypervisors, and actions wait for its end', async (t) => {
  const id = await activeServer()
  const begun = await compute('POST', `/servers/${id}/migration`, { to: 'hv-2' })
  t.match(begun, { status: 200, body: { id, status: 'active', hypervisor: 'hv-1', migrating_to: 'hv-2', revision: 2 } })
  await api.drained()
  t.match(await recordOf(id), { hypervisors: ['hv-1', 'hv-2'], revision: 2 })
  t.match(await compute('POST', `/servers/${id}/migration`, { to: 'hv-2' }), begun, 'again: nothing changes')
  t.match(await compute('POST', `/servers/${id}/migration`, { to: 'hv-3' }), { status: 409 })
  t.equal((await act(id, 'reboot')).status, 202)
  t.strictSame([await fetchActions('hv-1'), await fetchActions('hv-2')], [[], []])
  t.match(await compute('POST', `/servers/${id}/migration/end`), {
    status: 200,
    body: { hypervisor: 'hv-2', migrating_to: null, revision: 3 },
  })
  t.match(await compute('POST', `/servers/${id}/migration/end`), {
    status: 409,
    body: { errors: [`${id} does not migrate`] },
  })
  await api.drained()
  t.match(await recordOf(id), { hypervisors: ['hv-2'], revision: 3 })
  t.strictSame(await carryOut('hv-1'), [])
  t.strictSame(await carryOut('hv-2'), ['reboot'])

  await compute('POST', `/servers/${id}/migration`, { to: 'hv-1' })
  t.match(await compute('DELETE', `/servers/${id}/migration`), {
    status: 200,
    body: { hypervisor: 'hv-2', migrating_to: null },
  })
  t.match(await compute('DELETE', `/servers/${id}/migration`), { status: 409 })
  await api.drained()
  t.strictSame((await recordOf(id))!.hypervisors, ['hv-2'])
  t.match(await compute('GET', `/servers/${id}`), {
    status: 200,
    body: { hypervisor: 'hv-2', migrating_to: null, sealed_at: null },
  })
})

t.test('a migration needs another hypervisor of the zone with room, and no action that is carried out', async (t) => {
  const id = await activeServer()
  for (const to of ['hv-1', 'hv-3', 'hv-9'])
    t.match(await compute('POST', `/servers/${id}/migration`, { to }), {
      status: 422,
      body: { errors: [`to: ${to} is not another hypervisor of the zone of ${id}`] },
    })
  await act(id, 'reboot')
  const [given] = await fetchActions()
  t.match(await compute('POST', `/servers/${id}/migration`, { to: 'hv-2' }), {
    status: 409,
    body: { errors: [`hv-1 carries out an action of ${id}: report its outcome first`] },
  })
  await expireGiven()
  await fetchActions()
  t.equal(
    (await compute('POST', `/servers/${id}/migration`, { to: 'hv-2' })).status,
    409,
    'nor while an agent works longer, and fetches the action again',
  )
  await expireGiven()
  t.equal(
    (await compute('POST', `/servers/${id}/migration`, { to: 'hv-2' })).status,
    200,
    'an agent that died does not hold it up',
  )
  await compute('POST', `/servers/${id}/migration/end`)
  t.match(await report(given!.id, 'succeeded'), { status: 404 }, 'the action is not its own any more')
  t.strictSame(await carryOut('hv-2'), ['reboot'])
  const used = 65_536 - (await freeOf('hv-1'))
  await db
    .updateTable('hypervisors')
    .set({ ram: used + 1023 })
    .where('name', '=', 'hv-1')
    .execute()
  t.strictSame(await compute('POST', `/servers/${id}/migration`, { to: 'hv-1' }), {
    status: 503,
    body: { error_name: 'insufficient_capacity', errors: [`hv-1 has 1023 MB of RAM free, and ${id} needs 1024`] },
  })
  await db
    .updateTable('hypervisors')
    .set({ ram: used + 1024 })
    .where('name', '=', 'hv-1')
    .execute()
  for (const method of ['POST', 'DELETE'] as const)
    t.equal((await compute(method, `/servers/${id}/migration`, { to: 'hv-1' })).status, 200)
  await db.updateTable('hypervisors').set({ ram: 65_536 }).execute()
  await call('DELETE', `servers/${id}`)
  t.match(await compute('POST', `/servers/${id}/migration`, { to: 'hv-1' }), {
    status: 409,
    body: { errors: [`${id} is deleting`] },
  })
  await carryOut('hv-2')
  await becomes(id, 'deleted')
  for (const [method, path] of [
    ['POST', '/migration'],
    ['POST', '/migration/end'],
    ['DELETE', '/migration'],
    ['POST', '/seal'],
    ['GET', ''],
  ] as const) {
    t.match(
      await compute(method, `/servers/${id}${path}`, method === 'GET' ? undefined : { to: 'hv-1' }),
      { status: 404 },
      path,
    )
  }
})

t.test('a server that migrates uses RAM on both hypervisors', async (t) => {
  const id = await activeServer()
  const {
    rows: [row],
  } = await pool.query<{ ram: number }>(
    `
      select coalesce(sum(ram), 0)::int as ram
      from servers
      join server_types on server_types.id = server_type_id
      where hypervisor = 'hv-2' and deleted_at is null`,
  )
  await db
    .updateTable('hypervisors')
    .set({ ram: row!.ram + 1024 })
    .where('name', '=', 'hv-2')
    .execute()
  await db.updateTable('hypervisors').set({ ram: 1 }).where('name', '=', 'hv-1').execute()
  t.equal((await compute('POST', `/servers/${id}/migration`, { to: 'hv-2' })).status, 200)
  t.match(await call('POST', 'servers', { image: 'img-deb12', zone: 'gb1-a' }), { status: 503 })
  await compute('DELETE', `/servers/${id}/migration`)
  t.match(await call('POST', 'servers', { image: 'img-deb12', zone: 'gb1-a' }), { status: 202 })
  await db.updateTable('hypervisors').set({ ram: 65_536 }).execute()
  await carryOut('hv-2')
})

t.test('a seal is in the record, and stays for every later one', async (t) => {
  const id = await activeServer({ user_data: Buffer.from('secret').toString('base64') })
  const { status, body } = await compute('POST', `/servers/${id}/seal`)
  t.match([status, body], [200, { sealed_at: /Z$/, revision: 2 }])
  t.strictSame((await compute('POST', `/servers/${id}/seal`)).body, body, 'again: nothing changes')
  await api.drained()
  const { sealedAt } = (await recordOf(id))!
  t.ok(sealedAt)
  await call('PUT', `servers/${id}`, { user_data: Buffer.from('other').toString('base64') })
  await api.drained()
  t.equal((await recordOf(id))!.sealedAt, sealedAt)
})

t.test('each report of a hypervisor leaves an audit line; a read and a refused request leave none', async (t) => {
  const id = await activeServer({ user_data: Buffer.from('secret').toString('base64') })
  await act(id, 'stop')
  audit.length = 0
  const [given] = await fetchActions()
  for (let i = 0; i < 2; i++)
    t.match(await report(given!.id, 'failed', 'the disk of secret-name is full'), { status: 200 })
  await report(given!.id, 'succeeded')
  await compute('GET', `/servers/${id}`)
  await compute('POST', `/servers/${id}/migration`, { to: 'hv-9' })
  await compute('POST', `/servers/${id}/migration`, { to: 'hv-2' })
  await compute('DELETE', `/servers/${id}/migration`)
  await compute('POST', `/servers/${id}/seal`)
  const line = { request_id: 'string', address: '127.0.0.1', method: 'POST', id }
  const outcome = {
    ...line,
    hypervisor: 'hv-1',
    action: String(given!.id),
    route: '/hypervisors/:hypervisor/actions/:action/outcome',
    set: ['outcome', 'fault'],
  }
  t.strictSame(
    audit.map(({ request_id: id, ...rest }) => ({ ...rest, request_id: typeof id })),
    [
      outcome,
      { ...outcome, changed: false },
      { ...line, route: '/servers/:id/migration', set: ['to'] },
      { ...line, method: 'DELETE', route: '/servers/:id/migration' },
      { ...line, route: '/servers/:id/seal' },
    ],
  )
  t.notMatch(JSON.stringify(audit), 'secret-name')
})

t.test('the metrics: what waits, for how long, and what nobody fetches', async (t) => {
  await carryOut()
  t.strictSame(await readActionQueue(db), { waiting: 0, age: 0, unfetched: 0 })
  const id = await activeServer()
  for (const action of ['stop', 'start']) await act(id, action)
  await pool.query(
    `
      update compute_actions
      set requested_at = now() - interval '1000 s', finished_at = finished_at - interval '900 s'
      where server_id = $1`,
    [id],
  )
  const before = await readActionQueue(db)
  t.equal(before.waiting, 2)
  const { rows } = await pool.query<Record<string, unknown>>(executed('docs/operations/conditions.md', 'compute-queue'))
  t.match(rows, [
    { server_id: id, kind: 'stop', hypervisor: 'hv-1', given_to: null },
    { server_id: id, kind: 'start' },
  ])
  t.ok(before.age >= 1000 && before.age < 1100)
  t.ok(before.unfetched >= 900 && before.unfetched < 1000, String(before.unfetched))
  const [given] = await fetchActions()
  const fetched = await readActionQueue(db)
  t.ok(fetched.unfetched < 900)
  await report(given!.id, 'succeeded')
  t.ok(
    (await readActionQueue(db)).unfetched < 900,
    'an action that had to wait for another one is not one that nobody fetches',
  )
  await carryOut()
  await carryOut()
})

t.test('actions are kept for 30 days after they were finished, and until they are finished', async (t) => {
  const id = await activeServer()
  for (const action of ['stop', 'start']) await act(id, action)
  await carryOut()
  await act(id, 'reboot')
  const keptAfter = async (days: number) => {
    await pool.query(
      `
        update compute_actions
        set requested_at = now() - $2::interval,
          finished_at = case when outcome is not null then now() - $2::interval end
        where server_id = $1`,
      [id, `${days} days`],
    )
    await purgeActions(db)
    return (
      await db.selectFrom('compute_actions').select('kind').where('server_id', '=', id).orderBy('id').execute()
    ).map(({ kind }) => kind)
  }
  t.strictSame(await keptAfter(29), ['create', 'stop', 'start', 'reboot'])
  t.strictSame(await keptAfter(31), ['reboot'])
  await carryOut()
})

t.test('of the finished actions of a server the newest 1,000 are kept', async (t) => {
  const [busy, other] = [await activeServer(), await activeServer()]
  await pool.query(
    `insert into compute_actions (server_id, kind, requested_at, finished_at, outcome)
    select $1, 'reboot', now() - n * interval '1 s', now() - n * interval '1 s', 'succeeded'
    from generate_series(1, 1100) n`,
    [busy],
  )
  await purgeActions(db)
  const { rows } = await pool.query(
    `
      select server_id, count(*), min(finished_at) > now() - interval '1010 s' as are_newest
      from compute_actions
      where server_id in ($1, $2)
      group by server_id
      order by count`,
    [busy, other],
  )
  t.strictSame(rows, [
    { server_id: other, count: 1, are_newest: true },
    { server_id: busy, count: 1000, are_newest: true },
  ])
  await pool.query('delete from compute_actions where server_id = $1', [busy])
})

const SEED = Number(process.env['IMDS_TEST_SEED'] ?? '7')

t.test(
  `whatever agents do, each server's actions are done once and in the order of the requests (seed ${SEED})`,
  async (t) => {
    const servers = [await activeServer(), await activeServer(), await activeServer()]
    const next = random(SEED)
    const pick = <T>(list: readonly T[]): T => list[Math.floor(next() * list.length)]!
    const requested = new Map(servers.map((id) => [id, [] as string[]]))
    const done = new Map(servers.map((id) => [id, [] as number[]]))
    const given: Action[] = []
    const steps = { request: 0, fetch: 0, report: 0, again: 0, crash: 0 }
    const request = async () => {
      const [id, action] = [pick(servers), pick(['stop', 'start', 'reboot', 'reset', 'snapshot', 'activate_console'])]
      if ((await act(id, action)).status === 202) requested.get(id)!.push(action)
    }
    const fetchSome = async () => {
      const all = await Promise.all([fetchActions('hv-1', 0), fetchActions('hv-1', 1)])
      const ids = all.flat().map(({ id }) => id)
      if (new Set(ids).size < ids.length) t.fail('two requests got one action')
      given.push(...all.flat())
    }
    const reportOne = async (count: number) => {
      if (given.length === 0) return
      const action = pick(given)
      const outcome = pick(['succeeded', 'failed'] as const)
      const answers = await Promise.all(Array.from({ length: count }, () => report(action.id, outcome)))
      if (answers.every(({ status }) => status === 200) && !done.get(action.server.id)!.includes(action.id))
        done.get(action.server.id)!.push(action.id)
      else if (answers.some(({ status }) => status !== 200 && status !== 409)) t.fail(JSON.stringify(answers))
    }
    for (let i = 0; i < 80; i++) {
      const step = pick(['request', 'request', 'fetch', 'fetch', 'report', 'report', 'again', 'crash'] as const)
      steps[step]++
      if (step === 'request') await request()
      else if (step === 'fetch') await fetchSome()
      else if (step === 'crash') await expireGiven()
      else await reportOne(step === 'again' ? 3 : 1)
    }
    const before = outcomes.length
    const rest = (
      await db
        .selectFrom('compute_actions')
        .select('id')
        .where('server_id', 'in', servers)
        .where('finished_at', 'is', null)
        .execute()
    ).length
    await expireGiven()
    t.equal((await carryOut()).length, rest, 'what was given out to nobody that lives is given out again')
    t.equal(outcomes.length, before + rest, 'each outcome counts once')
    for (const id of servers) {
      const rows = await db
        .selectFrom('compute_actions')
        .select(['id', 'kind'])
        .where('server_id', '=', id)
        .where('kind', '!=', 'create')
        .orderBy('finished_at')
        .orderBy('id')
        .execute()
      t.strictSame(
        rows.map(({ kind }) => kind),
        requested.get(id),
        'the order of the requests',
      )
      const reported = done.get(id)!
      t.strictSame(
        reported,
        reported.toSorted((a, b) => a - b),
      )
    }
    for (const [step, count] of Object.entries(steps)) t.ok(count > 0, step)
    t.ok([...requested.values()].flat().length > 10)
  },
)

t.test('a request waits as long as it asks, though the clock is set back meanwhile', async (t) => {
  const setClockRight = setClockAhead(t)
  const before = waited
  const waiting = compute('GET', '/hypervisors/hv-2/actions?wait=1')
  await until(() => waited > before, 'the request to wait')
  setClockRight()
  t.strictSame(await woken(waiting), [])
})

t.test('closing the compute interface answers the requests that wait', async (t) => {
  const before = waited
  const waiting = compute('GET', '/hypervisors/hv-2/actions?wait=60', undefined, 1)
  await until(() => waited > before, 'the request to wait')
  await computes[1]!.close()
  t.strictSame(await woken(waiting), [])
})
