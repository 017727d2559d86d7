/**
 * The launch gate of the operator API, which reports to a control plane whether a guest can be started.
 */
import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { testDirectory } from '../support/test-directory.ts'

t.test('the launch gate opens for a served instance and stays closed for a contested address', async (t) => {
  const directory = testDirectory(t)
  const away = join(t.testdirName, 'away')
  mkdirSync(away)
  const write = (id: string, interfaces: object[]) => {
    writeFileSync(join(away, id), JSON.stringify(anInstance({ id, interfaces })))
    renameSync(join(away, id), join(directory, `${id}.json`)) // so that the daemon never reads half a file
  }
  const nic = (n: number, addresses: object) => ({
    id: `int-${String(n)}`,
    macAddress: `02:24:19:00:00:0${String(n)}`,
    ...addresses,
  })
  write('srv-one', [nic(1, { ipv4Addresses: ['127.0.0.1/8'] })])
  write('srv-two', [nic(2, { ipv4Addresses: ['127.0.0.2/8'] }), nic(3, { ipv4Addresses: ['127.0.0.3/8'] })])
  write('srv-six', [nic(4, { ipv4Addresses: ['127.0.0.4/8'], ipv6Addresses: ['fd00::4/128'] })])
  write('srv-blue', [{ ...nic(5, { ipv4Addresses: ['127.0.0.5/8'] }), network: 'blue' }])
  const daemon = await startDaemon(t, { IMDS_STORE: `file:${directory}`, IMDS_RESYNC_SECONDS: '1' })
  const gate = async () =>
    Object.fromEntries(
      await Promise.all(
        ['one', 'two', 'six', 'blue', 'thief'].map(
          async (name) => [name, (await daemon.operator(`/instances/srv-${name}`)).status] as const,
        ),
      ),
    )

  await until(async () => (await daemon.operator('/readyz')).status === 200, 'the records')
  t.same(
    await gate(),
    { one: 200, two: 200, six: 200, blue: 404, thief: 404 },
    'this daemon has no listener on network blue',
  )
  write('srv-thief', [nic(6, { ipv4Addresses: ['127.0.0.3/8', '127.0.0.6/8'] })])
  await until(async () => (await daemon.metric('imds_view_contested_addresses')) === 1, 'the address to be contested')
  t.same(await gate(), { one: 200, two: 404, six: 200, blue: 404, thief: 404 })
  t.equal(
    (await daemon.get('/latest/meta-data/instance-id', '127.0.0.2')).status,
    200,
    'its other address is still served',
  )
  write('srv-thief', [nic(6, { ipv4Addresses: ['127.0.0.6/8'], ipv6Prefixes: ['fd00::/64'] })])
  await until(async () => (await gate())['two'] === 200, 'the address to have one owner again')
  await until(async () => (await daemon.metric('imds_view_contested_addresses')) > 0, 'a prefix to be contested')
  t.same(await gate(), { one: 200, two: 200, six: 404, blue: 404, thief: 404 })
  rmSync(join(directory, 'srv-thief.json')) // absence is not removal
  write('srv-six', [nic(4, { ipv4Addresses: ['127.0.0.4/8'] })])
  await until(
    async () => (await daemon.metric('imds_view_contested_addresses')) === 0,
    'the prefix to have one owner again',
  )
  t.same(await gate(), { one: 200, two: 200, six: 200, blue: 404, thief: 200 })
})
