/**
 * The whole path: a request to imds-api, PostgreSQL, Redis, imdsd, and what the guest reads with curl.
 * test/clients/api-cloud-init.test.ts has a guest with cloud-init.
 */
import t from 'tap'
import { aRegion, ADAS_KEY } from '../support/fixtures/region.ts'
import { makeHypervisor, SERVICE, withoutNamespaces } from '../support/netns/namespaces.ts'
import { startImdsApi, type Method } from '../support/programs/api.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { must, run } from '../support/programs/processes.ts'
import { startFaultyRedis } from '../support/redis/namespaced-redis.ts'
import { startRedis } from '../support/redis/redis.ts'

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
interface CloudIp {
  readonly id: string
  readonly public_ipv4: string
}

const USER_DATA = '#!/bin/sh\necho "grüß dich"\n'
// hv-3 is the only hypervisor of gb1-b
const NEW_SERVER = { image: 'img-deb12', zone: 'gb1-b', user_data: Buffer.from(USER_DATA).toString('base64') }

t.test('a guest reads with curl what its server was created with, and each change of its cloud IP', async (t) => {
  const redis = await startRedis(t)
  const region = aRegion({ address_pools: { ...aRegion().address_pools, private_ipv4: ['127.0.3.2-127.0.3.9'] } })
  const api = await startImdsApi(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1' }, region)
  const daemon = await startDaemon(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv-3' })
  const send = async <T>(method: Method, path: string, body?: object) => (await api.call(method, path, body)).body as T
  const {
    id,
    interfaces: [first],
  } = await send<Server>('POST', 'servers', NEW_SERVER)
  const curl = async (path: string, ...options: string[]) => {
    const { status, stdout } = await run([
      'curl',
      '-fs',
      ...options,
      '--interface',
      first.ipv4_address,
      `http://127.0.0.1:${daemon.guestPort}/latest/${path}`,
    ])
    return status === 0 ? stdout.toString() : `curl ended with ${String(status)}`
  }
  const reads = async (path: string, expected: string) => {
    let last = ''
    await until(async () => (last = await curl(path)) === expected, `${path} to be ${expected}`).catch(
      (error: unknown) => {
        throw new Error(`${path} is ${last}`, { cause: error })
      },
    )
    t.pass(`${path} is ${JSON.stringify(expected)}`)
  }

  await reads('user-data', USER_DATA)
  await reads('meta-data/instance-id', id)
  await reads('meta-data/public-keys/0/openssh-key', `${ADAS_KEY}\n`)
  const { id: cloudIp, public_ipv4 } = await send<CloudIp>('POST', 'cloud_ips')
  await send('POST', `cloud_ips/${cloudIp}/map`, { destination: first.id })
  await reads('meta-data/public-ipv4', public_ipv4)
  await send('POST', `cloud_ips/${cloudIp}/unmap`)
  await until(async () => !(await curl('meta-data/')).includes('public-ipv4'), 'the listing not to have public-ipv4')
  const { id: other, public_ipv4: otherAddress } = await send<CloudIp>('POST', 'cloud_ips')
  await send('POST', `cloud_ips/${other}/map`, { destination: id })
  await reads('meta-data/public-ipv4', otherAddress)
  await send('PUT', `servers/${id}`, { user_data: Buffer.from('new').toString('base64') })
  await reads('user-data', 'new')
  await send('PUT', `servers/${id}`, {
    tags: { Name: 'web', Role: 'front' },
    metadata_options: { instance_metadata_tags: 'enabled' },
  })
  await reads('meta-data/tags/instance/Name', 'web')
  await reads('meta-data/tags/instance/', 'Name\nRole')
  await send('PUT', `servers/${id}`, { metadata_options: { http_tokens: 'required' } })
  await reads('meta-data/instance-id', 'curl ended with 22') // 401 without a session token
  await send('PUT', `servers/${id}`, {
    metadata_options: { http_tokens: 'optional', instance_metadata_tags: 'disabled' },
  })
  await reads('meta-data/instance-id', id)
  await until(async () => !(await curl('meta-data/')).includes('tags'), 'the listing not to have tags')
  await send('PUT', `servers/${id}`, { metadata_options: { reports: 'enabled' } })
  const reports = () => send<object[]>('GET', `servers/${id}/reports`)
  t.same(await reports(), [], 'before the guest has reported')
  const form = ['--data', 'pub_key_rsa=N/A']
  await until(async () => (await curl('reports/phone-home', ...form)) === '', 'the guest to report')
  await until(async () => (await reports()).length > 0, 'the report in the API')
  t.match(await reports(), [{ name: 'pub_key_rsa', text: 'N/A' }])
  await send('DELETE', `servers/${id}`)
  await reads('meta-data/instance-id', 'curl ended with 22')
})

t.test(
  'a guest is served over IPv6 at the address that the API shows, and in the whole of its prefix',
  { skip: withoutNamespaces() },
  async (t) => {
    const hypervisor = await makeHypervisor()
    t.teardown(() => hypervisor.remove())
    const ip = (where: { readonly within: readonly string[] }, words: string) =>
      must([...where.within, 'ip', '-6', ...words.split(' ')])
    const service = 'fd00:ec2::254'
    await ip(hypervisor, `address add ${service}/128 dev lo`)
    const redis = await startFaultyRedis(hypervisor)
    t.teardown(() => redis.stop())
    const range = '10.88.1.0/29'
    const address_pools = {
      ...aRegion().address_pools,
      private_ipv4: [range],
      ipv6: { [range]: '2001:db8:100:8::/61' },
    }
    const region = aRegion({ address_pools })
    const api = await startImdsApi(t, { IMDS_STORE: redis.publisherUrl, IMDS_REGION: 'gb1' }, region)
    await startDaemon(
      t,
      {
        IMDS_STORE: redis.url,
        IMDS_REGION: 'gb1',
        IMDS_HYPERVISOR: 'hv-3',
        IMDS_LISTEN: `${SERVICE}:80,[${service}]:80`,
      },
      hypervisor.within,
    )
    const {
      id,
      interfaces: [first],
    } = (await api.call('POST', 'servers', NEW_SERVER)).body as Server
    const guest = await hypervisor.addGuest({
      address: `${first.ipv4_address}/29`,
      gateway: '10.88.1.6',
      macAddress: first.mac_address,
      device: 'of-server',
    })
    const prefix = `2001:db8:100:${(8 + (Number(first.ipv4_address.split('.')[3]) % 8)).toString(16)}`
    const [link] = JSON.parse(String(await ip(guest, '-json address show dev eth0 scope link'))) as [
      { addr_info: [{ local: string }] },
    ]
    t.equal(first.ipv6_address, link.addr_info[0].local.replace('fe80:', prefix), 'as the kernel makes it by SLAAC')

    for (const address of [`${prefix}::1`, 'fe80::1'])
      await ip(hypervisor, `address add ${address}/64 dev of-server nodad`)
    for (const address of [first.ipv6_address, `${prefix}::cafe`])
      await ip(guest, `address add ${address}/64 dev eth0 nodad`)
    await ip(guest, `route add ${service} via ${prefix}::1`)
    const read = async (path: string, from = first.ipv6_address) => {
      const curl = ['curl', '-s', '-w', '%{http_code}', '--interface', from, `http://[${service}]/${path}`]
      return (await run([...guest.within, ...curl])).stdout.toString()
    }
    await until(async () => (await read('latest/meta-data/ipv6')) === '403', 'IPv6 to be disabled, as on EC2')
    await api.call('PUT', `servers/${id}`, {
      metadata_options: { http_protocol_ipv6: 'enabled', openstack: 'enabled' },
    })
    await until(async () => (await read('latest/meta-data/ipv6')) === `${first.ipv6_address}200`, 'the option')
    t.equal(await read('latest/meta-data/instance-id', `${prefix}::cafe`), `${id}200`)
    const mac = `latest/meta-data/network/interfaces/macs/${first.mac_address}`
    t.equal(await read(`${mac}/ipv6-prefix`), `${prefix}::/64200`)
    t.match(await read('openstack/latest/network_data.json'), /"type": "ipv6_slaac"/)
    const { ethernets } = JSON.parse((await read('nocloud/network-config')).slice(0, -3)) as {
      ethernets: Record<string, object>
    }
    t.match(Object.values(ethernets), [{ dhcp4: true, 'accept-ra': true }])
  },
)
