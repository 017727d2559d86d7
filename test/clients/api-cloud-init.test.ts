/** The whole path: a request to imds-api, PostgreSQL, Redis, imdsd, and the real cloud-init in a guest. */
import t from 'tap'
import { aRegion, ADAS_KEY } from '../support/fixtures/region.ts'
import { startMachine } from '../support/netns/guest-machine.ts'
import { makeHypervisor, SERVICE, withoutNamespaces } from '../support/netns/namespaces.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { startDaemon } from '../support/programs/daemon.ts'
import { startFaultyRedis } from '../support/redis/namespaced-redis.ts'
import { without } from '../support/packages.ts'

interface Interface {
  readonly id: string
  readonly mac_address: string
  readonly ipv4_address: string
  readonly ipv6_address: string
}
interface Server {
  readonly id: string
  readonly interfaces: readonly [Interface]
}

const USER_DATA = '#!/bin/sh\necho "grüß dich"\n'
// hv-3 is the only hypervisor of gb1-b
const NEW_SERVER = { image: 'img-deb12', zone: 'gb1-b', user_data: Buffer.from(USER_DATA).toString('base64') }

t.test(
  'the real cloud-init boots a guest from what imds-api has published',
  { skip: withoutNamespaces() || without('cloud-init') },
  async (t) => {
    const hypervisor = await makeHypervisor()
    t.teardown(() => hypervisor.remove())
    const redis = await startFaultyRedis(hypervisor)
    t.teardown(() => redis.stop())
    const region = aRegion({ address_pools: { ...aRegion().address_pools, private_ipv4: ['10.88.1.2-10.88.1.6'] } })
    const api = await startImdsApi(t, { IMDS_STORE: redis.publisherUrl, IMDS_REGION: 'gb1' }, region)
    await startDaemon(
      t,
      { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv-3', IMDS_LISTEN: `${SERVICE}:80` },
      hypervisor.within,
    )
    const {
      id,
      interfaces: [first],
    } = (await api.call('POST', 'servers', { ...NEW_SERVER, cloud_ip: true })).body as Server
    const guest = await hypervisor.addGuest({
      address: `${first.ipv4_address}/29`,
      gateway: '10.88.1.1',
      macAddress: first.mac_address,
    })
    const machine = await startMachine(guest)
    t.teardown(() => machine.stop())
    await machine.write(
      '/etc/cloud/cloud.cfg.d/99_test.cfg',
      `
datasource_list: [Ec2]
datasource: {Ec2: {strict_id: false, max_wait: 20, timeout: 5}}
disable_network_activation: true
cloud_init_modules: [set_hostname, users-groups, ssh]
ssh_genkeytypes: [ed25519]
`,
    )
    for (const stage of [['--local'], []]) t.equal((await machine.run(['cloud-init', 'init', ...stage])).status, 0)
    const text = async (path: string) => (await machine.read(path)).toString()
    t.equal(await text('/var/lib/cloud/data/instance-id'), `${id}\n`)
    t.equal(await text('/var/lib/cloud/instance/user-data.txt'), USER_DATA)
    t.equal((await text('/home/debian/.ssh/authorized_keys')).trim(), ADAS_KEY)
    t.match(JSON.parse(await text('/var/lib/cloud/data/set-hostname')), { hostname: id, fqdn: `${id}.gb1.example.com` })
    t.match(JSON.parse(await text('/run/cloud-init/instance-data.json')), {
      ds: { 'meta-data': { 'public-ipv4': '203.0.113.1' } },
    })
  },
)
