/** A program that follows the events of an account has what a GET of each of its resources returns, after any changes. */
import t from 'tap'
import { random } from '../support/fixtures/generated-records.ts'
import { ADA, MARY, ONE, withMary } from '../support/fixtures/region.ts'
import { anApi, type Method } from '../support/programs/api.ts'
import type { ReadEvent } from '../support/programs/event-reader.ts'

const SEED = 17
const STEPS = 400

interface Resource {
  readonly id: string
  readonly resource_type: string
  readonly url: string
  readonly status?: string
  readonly owner?: unknown
}

/** The collections of resources that have events. */
const PATHS: Readonly<Record<string, string>> = {
  account: 'accounts',
  user: 'users',
  api_client: 'api_clients',
  application: 'applications',
  collaboration: 'collaborations',
  image: 'images',
  server: 'servers',
  server_group: 'server_groups',
  cloud_ip: 'cloud_ips',
  config_map: 'config_maps',
  database_server: 'database_servers',
}

t.test(`the mirror is right after ${String(STEPS)} random changes (seed ${String(SEED)})`, async (t) => {
  const region = withMary()
  const api = await anApi(t, { region })
  await api.startPublisher()
  const [ada, mary] = [await api.userToken(ADA), await api.userToken(MARY)]
  const next = random(SEED)
  const below = (count: number) => Math.floor(next() * count)
  const get = async (path: string) => (await api.call('GET', `/1.0/${path}`)).body
  const list = async (type: string) => {
    const all = (await get(PATHS[type]!)) as readonly Resource[]
    return type === 'image' ? all.filter(({ owner }) => owner === ONE) : all
  }
  const any = async (type: string) => {
    const all = await list(type)
    return all.length === 0 ? 'none' : all[below(all.length)]!.id
  }

  const mirror = new Map<string, unknown>()
  const key = (type: string, id: string) => `${type} ${id}`
  const readAll = async () => {
    const all = new Map<string, unknown>()
    for (const type of Object.keys(PATHS))
      for (const { id } of await list(type)) all.set(key(type, id), await get(`${PATHS[type]!}/${id}`))
    return all
  }
  let cursor = (await api.call('GET', '/1.0/events?after=now')).headers['link'] as string
  for (const [one, body] of await readAll()) mirror.set(one, body)
  const follow = async () => {
    for (;;) {
      const after = /after=([^&>]+)/.exec(cursor)![1]!
      const { headers, body } = await api.call('GET', `/1.0/events?after=${after}&limit=1000`)
      cursor = String(headers['link'])
      const events = body as readonly (ReadEvent & { readonly resource: string })[]
      const changed = new Map(events.map(({ type, resource, action }) => [key(type, resource), action]))
      for (const [one, action] of changed) {
        const [type, id] = one.split(' ') as [string, string]
        if (action === 'delete') mirror.delete(one)
        else if (type in PATHS) mirror.set(one, await get(`${PATHS[type]!}/${id}`))
      }
      if (events.length === 0) return
    }
  }

  const name = () => `n-${String(below(1e6))}`
  const send = async (method: Method, path: string, body?: object) => api.call(method, `/1.0/${path}`, body)
  const CHANGES: readonly (() => Promise<unknown>)[] = [
    () => send('POST', 'servers', { image: 'img-deb12', name: name(), ...(below(2) === 0 && { cloud_ip: true }) }),
    async () => send('PUT', `servers/${await any('server')}`, { name: name() }),
    async () => send('DELETE', `servers/${await any('server')}`),
    async () => send('POST', `servers/${await any('server')}/snapshot`),
    async () => send('POST', `servers/${await any('server')}/${['stop', 'start'][below(2)]!}`),
    async () => send('PUT', `servers/${await any('server')}/${['', 'un'][below(2)]!}lock_resource`),
    () => send('POST', 'server_groups', { name: name() }),
    async () => send('PUT', `server_groups/${await any('server_group')}`, { description: name() }),
    async () =>
      send('POST', `server_groups/${await any('server_group')}/${['add', 'remove'][below(2)]!}_servers`, {
        servers: [{ server: await any('server') }],
      }),
    async () => send('DELETE', `server_groups/${await any('server_group')}`),
    () => send('POST', 'cloud_ips', { name: name() }),
    async () => send('PUT', `cloud_ips/${await any('cloud_ip')}`, { reverse_dns: `${name()}.example.com` }),
    async () =>
      send('POST', `cloud_ips/${await any('cloud_ip')}/map`, {
        destination: await any(['server', 'server_group', 'database_server'][below(3)]!),
      }),
    async () => send('POST', `cloud_ips/${await any('cloud_ip')}/unmap`),
    async () => send('DELETE', `cloud_ips/${await any('cloud_ip')}`),
    async () => send('PUT', `images/${await any('image')}`, { description: name() }),
    async () => send('DELETE', `images/${await any('image')}`),
    () => send('POST', 'database_servers', { name: name() }),
    async () => send('PUT', `database_servers/${await any('database_server')}`, { name: name() }),
    async () => send('DELETE', `database_servers/${await any('database_server')}`),
    () => send('POST', 'config_maps', { name: name(), data: { a: below(9) } }),
    async () => send('PUT', `config_maps/${await any('config_map')}`, { data: { a: below(9) } }),
    () => send('POST', 'api_clients', { name: name() }),
    () => send('POST', 'applications', { name: name() }),
    () => send('PUT', 'account', { name: name() }),
    () => api.callWith(ada, 'PUT', '/1.0/user', { name: name() }),
    () => api.callWith(mary, 'PUT', '/1.0/user', { name: name() }),
    () =>
      send('POST', 'collaborations', { email: ['mary@example.com', `${name()}@example.com`][below(2)], role: 'admin' }),
    async () =>
      api.callWith(
        mary,
        'POST',
        `/1.0/user/collaborations/${await any('collaboration')}/${['accept', 'reject'][below(2)]!}`,
      ),
    async () => send('DELETE', `collaborations/${await any('collaboration')}`),
  ]
  const answers: Record<number, number> = {}
  for (let step = 0; step < STEPS; step++) {
    const { status } = (await CHANGES[below(CHANGES.length)]!()) as { readonly status: number }
    answers[status] = (answers[status] ?? 0) + 1
    if (below(10) === 0) await follow()
  }
  t.ok(
    ['500', '503'].every((status) => !(status in answers)),
    JSON.stringify(answers),
  )
  await api.drained()
  await follow()
  const all = await readAll()
  t.ok(all.size > 40, String(all.size))
  const stale = [...new Set([...all.keys(), ...mirror.keys()])].filter(
    (one) => JSON.stringify(all.get(one)) !== JSON.stringify(mirror.get(one)),
  )
  t.strictSame(stale, [])
  if (stale[0] !== undefined) t.strictSame(mirror.get(stale[0]), all.get(stale[0]))
})
