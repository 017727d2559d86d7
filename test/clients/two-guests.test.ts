/**
 * Two guests of one hypervisor, each in its own network namespace, read their whole trees while their records change.
 * Every field of a record contains a text or number of its tenant, so that data of the other guest is recognised.
 */
import { join } from 'node:path'
import t, { type Test } from 'tap'
import type { Publisher } from '../../src/store/open.ts'
import { crawl } from '../support/fixtures/crawl.ts'
import { startDaemon, until, type Answer } from '../support/programs/daemon.ts'
import {
  makeHypervisor,
  withoutNamespaces,
  type Ask,
  type Guest,
  type Hypervisor,
  type Link,
} from '../support/netns/namespaces.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'
import { shortDirectory } from '../support/test-directory.ts'

/**
 * The tenant of a guest. Its addresses begin with `numbers`. No data of another tenant contains its name or numbers.
 */
interface Tenant {
  readonly name: string
  readonly link: Link
  readonly cloudIps: string
  readonly numbers: readonly string[]
}

function aTenant(name: string, n: number, cloudIps: string): Tenant {
  const [local, mac] = [`10.88.${String(n)}.`, `02:0${String(n)}:00:`]
  return {
    name,
    link: { address: `${local}2/30`, gateway: `${local}1`, macAddress: `${mac}00:00:01` },
    cloudIps,
    numbers: [local, mac, cloudIps],
  }
}

const ALPHA = aTenant('alpha', 1, '198.51.100.')
const BRAVO = aTenant('bravo', 2, '203.0.113.')
const NOBODY = aTenant('nobody', 3, '192.0.2.')

const addressOf = ({ link: { address } }: Tenant) => address.replace(/\/.*$/, '')
const containsDataOf = ({ name, numbers }: Tenant, { body }: Answer) =>
  [name, ...numbers].some((mark) => body.includes(mark))

/** A revision of a tenant's record. Each has other keys, tags, groups, devices and cloud IPs. */
function aRecord({ name, link, cloudIps }: Tenant, revision: number): Record<string, unknown> {
  const some = <T>(modulus: number, make: (n: string) => T) =>
    Array.from({ length: revision % modulus }, (_, i) => make(String((i + revision) % 10)))
  const keyOf = (n: string) =>
    `ssh-ed25519 ${Buffer.from(`${name} ${String(revision)} ${n}`).toString('base64')} ${name}@example`
  return {
    schema: 1,
    revision,
    id: `srv-${name}`,
    fqdn: `${name}.gb1.example.com`,
    account: `acc-${name}`,
    serverType: { id: `typ-${name}`, handle: `${name}.small` },
    image: `img-${name}`,
    zone: { id: `zon-${name}`, handle: `gb1-${name}` },
    region: 'gb1',
    interfaces: [
      {
        id: `int-${name}`,
        macAddress: link.macAddress,
        ipv4Addresses: [link.address],
        cloudIps: some(3, (n) => ({
          id: `cip-${name}${n}`,
          publicIpv4: `${cloudIps}${n}`,
          fqdn: `cip-${name}-${n}.gb1.example.com`,
        })),
      },
    ],
    serverGroups: some(4, (n) => ({ id: `grp-${name}${n}`, name: `${name} ${n}` })),
    publicKeys: some(5, (n) => ({ user: `usr-${name}${n}`, key: keyOf(n) })),
    tags: Object.fromEntries(some(6, (n) => [`${name}.${n}`, `${name} ${String(revision)}`])),
    blockDevices: Object.fromEntries(some(3, (n) => [`ebs${n}`, `/dev/${name}${n}`])),
    options: { instanceMetadataTags: 'enabled' },
    hypervisors: ['hv1'],
  }
}

/** About 8 KiB of user-data, of which every line contains the revision. */
const userDataOf = ({ name }: Tenant, revision: number) => `${name} ${String(revision)}\n`.repeat(700)

/** Publishes a tenant's next revision on request, one at a time. */
class Changes {
  readonly #store: Publisher
  readonly #tenant: Tenant
  #revision = 0
  #publishing: Promise<void> | undefined

  constructor(store: Publisher, tenant: Tenant) {
    this.#store = store
    this.#tenant = tenant
  }

  /** The user-data of every revision so far. */
  get userData(): ReadonlySet<string> {
    return new Set(Array.from({ length: this.#revision }, (_, i) => userDataOf(this.#tenant, i + 1)))
  }

  /** Publishes the next revision, or waits for the publish that is in progress. */
  next(): Promise<void> {
    return (this.#publishing ??= this.#publish().finally(() => {
      this.#publishing = undefined
    }))
  }

  async #publish(): Promise<void> {
    const revision = ++this.#revision
    const { kind } = await this.#store.put(
      aRecord(this.#tenant, revision),
      Buffer.from(userDataOf(this.#tenant, revision)),
    )
    if (kind !== 'published') throw new Error(`revision ${String(revision)} of ${this.#tenant.name} is ${kind}`)
  }
}

const CRAWLS = 20
const REVISIONS_SEEN = 10
const REQUESTS_PER_CHANGE = 5
const VERSIONS = ['latest', '2021-03-23', '2009-04-04', '1.0']

/** Crawls the tree again and again, and changes it every few requests, until enough revisions were read. */
async function crawlWhileItChanges(guest: Guest, changes: Changes): Promise<Map<string, Answer>[]> {
  const crawls: Map<string, Answer>[] = []
  const seen = new Set<string>()
  let requests = 0
  const get = (path: string) => {
    if (++requests % REQUESTS_PER_CHANGE === 0) void changes.next()
    return guest.ask({ path })
  }
  while (crawls.length < CRAWLS || seen.size < REVISIONS_SEEN) {
    const version = VERSIONS[crawls.length % VERSIONS.length]!
    const answers = await crawl(version, get)
    crawls.push(answers)
    seen.add(String(answers.get(`/${version}/user-data`)?.body))
  }
  await changes.next()
  return crawls
}

const STORES = {
  files: (t: Test) => {
    const directory = shortDirectory(t)
    return Promise.resolve({ settings: { url: `file:${directory}` }, env: { IMDS_STORE: `file:${directory}` } })
  },
  Redis: async (t: Test, hypervisor: Hypervisor) => {
    const directory = shortDirectory(t)
    const socketPath = join(directory, 'redis')
    const redis = await startRedis(t, ['--unixsocket', socketPath])
    await hypervisor.forward(redis.port, socketPath)
    return {
      settings: { url: redis.url, region: 'gb1' },
      env: { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' },
    }
  },
}

for (const [name, startStore] of Object.entries(STORES)) {
  t.test(`two guests whose records come from ${name}`, { skip: withoutNamespaces() }, async (t) => {
    const hypervisor = await makeHypervisor()
    t.teardown(() => hypervisor.remove())
    const { settings, env } = await startStore(t, hypervisor)
    const store = await openTestStore(t, settings)
    await startDaemon(
      t,
      { ...env, IMDS_LISTEN: '169.254.169.254:80', IMDS_OPERATOR_LISTEN: '127.0.0.1:9169' },
      hypervisor.within,
    )
    const start = async (tenant: Tenant, other: Tenant) => {
      const guest = await hypervisor.addGuest(tenant.link)
      const changes = new Changes(store, tenant)
      await changes.next()
      await until(
        async () => (await guest.ask({ path: '/latest/meta-data/instance-id' })).status === 200,
        `${tenant.name} to be served`,
      )
      return { tenant, other, guest, changes }
    }
    const tenants = [await start(ALPHA, BRAVO), await start(BRAVO, ALPHA)]

    t.test('read only their own data, completely and without a failure, while both records change', async (t) => {
      const all = await Promise.all(
        tenants.map(async (each) => ({ ...each, crawls: await crawlWhileItChanges(each.guest, each.changes) })),
      )
      for (const { tenant, other, changes, crawls } of all) {
        const answers = crawls.flatMap((crawl) => [...crawl])
        t.comment(
          `${tenant.name}: ${String(changes.userData.size)} revisions during ${String(crawls.length)} crawls with ${String(answers.length)} requests`,
        )
        t.strictSame(
          answers.filter(([, { status }]) => status !== 200).map(([path, { status }]) => `${path} ${String(status)}`),
          [],
          'every listed path answers',
        )
        t.strictSame(
          answers.filter(([, answer]) => containsDataOf(other, answer)).map(([path]) => path),
          [],
          'no response contains data of the other tenant',
        )
        t.ok(
          answers.filter(([, answer]) => containsDataOf(tenant, answer)).length > answers.length / 4,
          'many responses contain data of the tenant',
        )
        const published = changes.userData
        const read = answers.filter(([path]) => path.endsWith('/user-data')).map(([, { body }]) => body.toString())
        t.equal(read.length, crawls.length)
        t.ok(
          read.every((text) => published.has(text)),
          'user-data is always that of one whole revision',
        )
      }
    })

    t.test('E1: are identified by their source address, whatever a header or a target contains', async (t) => {
      for (const { tenant, other, guest } of tenants) {
        const asks: Ask[] = [
          ...forgeries(addressOf(other)).map((headers) => ({ path: '/latest/meta-data/instance-id', headers })),
          { path: `http://${addressOf(other)}/latest/meta-data/instance-id` },
        ]
        for (const ask of asks) {
          const isForwarded = Object.keys(ask.headers ?? {}).some((name) => /forwarded/i.test(name))
          const { status, body } = await guest.ask(ask)
          t.strictSame(
            [status, body.toString()],
            isForwarded ? [403, ''] : [200, `srv-${tenant.name}`],
            JSON.stringify(ask),
          )
        }
      }
    })

    t.test("D3: cannot use each other's session tokens", async (t) => {
      const tokens = await Promise.all(
        tenants.map(async ({ guest }) => {
          const { status, body } = await guest.ask({
            path: '/latest/api/token',
            method: 'PUT',
            headers: { 'X-aws-ec2-metadata-token-ttl-seconds': '60' },
          })
          t.equal(status, 200)
          return body.toString()
        }),
      )
      for (const [i, { tenant, guest }] of tenants.entries()) {
        const withToken = (token: string) =>
          guest.ask({ path: '/latest/meta-data/instance-id', headers: { 'X-aws-ec2-metadata-token': token } })
        t.match(await withToken(tokens[i]!), { status: 200, body: Buffer.from(`srv-${tenant.name}`) })
        t.match(await withToken(tokens[1 - i]!), { status: 401 })
      }
    })

    t.test('E2: are served, while an address without an instance gets 503 to every request', async (t) => {
      const unknownPeer = await hypervisor.addGuest(NOBODY.link)
      const asks: Ask[] = [
        ...[
          '/',
          '/latest/',
          '/latest/meta-data/',
          '/latest/meta-data/instance-id',
          '/latest/user-data',
          '/openstack/latest/user_data',
          '/nothing',
          '/%zz',
        ].map((path) => ({ path })),
        ...['HEAD', 'PUT', 'POST', 'DELETE', 'OPTIONS'].map((method) => ({ path: '/latest/api/token', method })),
        ...forgeries(addressOf(ALPHA)).map((headers) => ({ path: '/latest/meta-data/instance-id', headers })),
      ]
      for (const ask of asks) {
        const answer = await unknownPeer.ask(ask)
        t.match(answer, { status: 503, headers: { 'retry-after': '1' } }, JSON.stringify(ask))
        t.notOk(
          [ALPHA, BRAVO].some((tenant) => containsDataOf(tenant, answer)),
          'the response contains no data of a tenant',
        )
      }
    })
  })
}

/** Headers that name another source address: each alone, and all together. */
function forgeries(address: string): Record<string, string>[] {
  const all = {
    'X-Forwarded-For': address,
    Forwarded: `for=${address};host=${address}`,
    'X-Real-IP': address,
    'True-Client-IP': address,
    Host: address,
  }
  return [...Object.entries(all).map(([name, value]) => ({ [name]: value })), all]
}
