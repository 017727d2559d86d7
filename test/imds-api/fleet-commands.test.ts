/** The commands of imds-api that drain, evacuate and remove a hypervisor, beside a running imds-api. */
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { aRegion } from '../support/fixtures/region.ts'
import { startImdsApi, writeRegion } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { IMDS_API, IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { run } from '../support/programs/processes.ts'
import { startRedis } from '../support/redis/redis.ts'
import { shortDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

const NEW_SERVER = { image: 'img-deb12', zone: 'gb1-a' }
const region = aRegion({
  accounts: aRegion().accounts.map((account) => ({ ...account, ram_limit: 65_536 })),
  hypervisors: [
    { name: 'hv1', zone: 'gb1-a', ram: 16_384 },
    { name: 'hv2', zone: 'gb1-a', ram: 4096 },
    { name: 'hv3', zone: 'gb1-a', ram: 2048 },
    { name: 'hv4', zone: 'gb1-b', ram: 65_536 },
  ],
})

t.test('a hypervisor is drained, evacuated and removed, and visible to operators all the time', async (t) => {
  const redis = await startRedis(t)
  for (const [name, lagSeconds] of [
    ['hv1', 3],
    ['hv2', 0],
  ] as const)
    await redis.client.set(
      keysOf('gb1').announcement(name),
      JSON.stringify({ version: '1.2.3', instances: 1, lagSeconds, seenAt: '2026-11-20T15:04:05Z' }),
    )
  const api = await startImdsApi(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1' }, region)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  const { id } = (await api.call('POST', 'servers', NEW_SERVER)).body as { id: string }
  const placeOf = async () =>
    ((await store.get(id))?.document as { hypervisors?: string[] } | undefined)?.hypervisors?.join()
  await until(async () => (await placeOf()) === 'hv1', 'the server to be published')

  const imdsctl = [process.execPath, IMDSCTL, '--store', redis.url, '--region', 'gb1']
  const refused = await run([...imdsctl, 'drain', 'hv1'], { env: programEnvironment() })
  t.match(refused, { status: 2, stderr: /imds-api publishes this region .*run imds-api drain hv1 on its host/ })

  const imdsApi = async (...args: string[]) => {
    const ran = await run([process.execPath, IMDS_API, ...args], {
      env: { ...programEnvironment(), ...api.env },
    })
    return { status: ran.status, text: ran.stdout.toString() + ran.stderr }
  }
  t.match(await imdsApi('hypervisors'), {
    status: 0,
    text: /^HYPERVISOR [^]*\nhv1 +gb1-a +1 +15360 +16384 +- +1\.2\.3 +1 +- +\d+ d ago\n[^]*\nhv3 +gb1-a +0 +2048 +2048 +- +- +- +- +never\n/,
  })
  t.match(await imdsApi('drain', 'hv9'), { status: 1, text: /has no hypervisor hv9: it has hv1, hv2, hv3, hv4/ })
  t.match(await imdsApi('undrain', 'hv1'), { status: 0, text: /^hv1 is not drained: .* \(nothing had to be done\)/ })
  t.match(await imdsApi('evacuate', 'hv1', '--to', 'hv9'), { status: 1, text: /has no hypervisor hv9/ })
  t.match(await imdsApi('evacuate', 'hv1', '--dry-run'), {
    status: 0,
    text: /^would be moved .* to hv2\n[^]*hv1 is not drained, so it may get new servers/,
  })

  const announce = ['--code', 'system-reboot', '--not-before', '2026-11-20T15:04:05Z', '--event', 'evt-1']
  t.match(await imdsApi('maintenance', id, ...announce), {
    status: 0,
    text: /^EVENT .*\nevt-1 +system-reboot +active /,
  })
  const maintenanceEventsOf = async () =>
    ((await store.get(id))?.document as { events?: { state: string }[] } | undefined)?.events
  await until(async () => (await maintenanceEventsOf())?.[0]?.state === 'active', 'H8: the event to be published')
  t.match(await imdsApi('maintenance', id, '--cancel', 'evt-1'), {
    status: 0,
    text: /\nevt-1 +system-reboot +canceled /,
  })
  await until(async () => (await maintenanceEventsOf())?.[0]?.state === 'canceled', 'H8: its end to be published')
  t.match(await imdsApi('maintenance', id, '--code', 'reboot'), { status: 1, text: /notBefore must be a time/ })
  t.match(await imdsApi('maintenance', 'srv-none'), { status: 1, text: /srv-none/ })

  const interfaces = [{ id: 'int-x', macAddress: '02:24:19:00:00:ef', ipv4Addresses: [] }]
  t.match(await store.put(anInstance({ id: 'srv-other', hypervisors: ['hv1'], interfaces })), { kind: 'published' })
  t.match(
    await imdsApi('evacuate', 'hv1', '--to', 'hv2', '--dry-run'),
    { status: 1, text: /the record of srv-other names hv1, and is of another publisher/ },
    'before anything is stopped',
  )
  await store.remove('srv-other')

  t.match(await imdsApi('drain', 'hv1'), { status: 0, text: /^hv1 is drained: it gets no new servers\n$/ })
  const begin = ['evacuate', 'hv1', '--to', 'hv2', '--begin']
  t.match(await imdsApi(...begin, '--dry-run'), {
    status: 0,
    text: /^would be begun srv-\w+ from hv1 to hv1 and hv2\n/,
  })
  t.match(await imdsApi(...begin), { status: 0, text: /^begun / })
  await until(async () => (await placeOf()) === 'hv1,hv2', 'the record to name both')
  t.match(await imdsApi('hypervisors'), {
    status: 0,
    text: /^HYPERVISOR +ZONE +SERVERS +FREE MB .*\nhv1 +gb1-a +1 +15360 +16384 +\d+ s ago +1\.2\.3 +1 +- +\d+ d ago\n/,
  })
  t.match(await imdsApi('evacuate', 'hv1'), { status: 0, text: /^moved / })
  await until(async () => (await placeOf()) === 'hv2', 'the record to name the target')
  const removed = region.hypervisors.map((one) => ({ ...one, ...(one.name === 'hv1' && { removed: true }) }))
  const file = writeRegion(shortDirectory(t), { ...region, hypervisors: removed })
  t.match(await imdsApi('apply', file), { status: 0, text: /^- hypervisor hv1\n/m })
  t.notMatch((await imdsApi('hypervisors')).text, /^hv1/m)
  await redis.stop()
  t.match(
    await imdsApi('hypervisors'),
    { status: 69, text: /\nhv2 +gb1-a .* never\n[^]*what daemons have announced is not known/ },
    'the command says by its status that the table lacks a part',
  )
})
