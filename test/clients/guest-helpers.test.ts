/**
 * The files of deploy/guest/ for cloud-init: Debian's ds-identify and cloud-init accept them, and what they make a guest
 * ask for is answered. systemd-imds.test.ts has the file for systemd.
 */
import { readdirSync, readFileSync } from 'node:fs'
import t, { type Test } from 'tap'
import { anInstance } from '../support/fixtures/instance.ts'
import { startHost } from '../support/netns/host.ts'
import type { Machine } from '../support/netns/guest-machine.ts'
import { startVm, type Dmi } from '../support/netns/guest-vm.ts'
import { withoutNamespaces, type Guest } from '../support/netns/namespaces.ts'
import { executed } from '../tools/documents.ts'
import { without } from '../support/packages.ts'

const HELPERS = new URL('../../deploy/guest/', import.meta.url).pathname
const helper = (name: string) => readFileSync(`${HELPERS}${name}`, 'utf8')
const LIBVIRT = dmiOf(/<entry name="(\w+)">([^<]+)</g, /<uuid>([^<]+)</, helper('libvirt.xml'))
const QEMU = dmiOf(/(\w+)=([\w.-]+)/g, /^-uuid (.+)$/m, helper('qemu.args'))
/** Those of QEMU without arguments. */
const PLAIN: Dmi = {
  sys_vendor: 'QEMU',
  product_name: 'Standard PC (Q35 + ICH9, 2009)',
  product_uuid: LIBVIRT.product_uuid!,
}

t.test('libvirt and QEMU get the same SMBIOS strings', (t) => {
  t.same(LIBVIRT, QEMU)
  t.match(LIBVIRT, { sys_vendor: 'imds', product_serial: /^srv-\w{5}\./ })
  t.notMatch(LIBVIRT.product_uuid, /^(ec2|.{4}2.ec)/)
  t.end()
})

t.test('cloud-init', { skip: withoutNamespaces() || without('cloud-init') }, async (t) => {
  const host = await startHost(t)

  t.test('ds-identify rejects an unknown machine; a prepared image prefers a cloud it recognises', async (t) => {
    const { guest } = await host.addGuest()
    t.same(await identify(await startGuest(t, guest, PLAIN, false)), { status: 1, chosen: undefined })
    const elsewhere = await startGuest(t, guest, { ...PLAIN, sys_vendor: 'Hetzner' }, true)
    t.same(await identify(elsewhere), { status: 0, chosen: '[ Hetzner, None ]' })
  })

  for (const [what, dmi, isPrepared] of [
    ['on a machine with the SMBIOS strings', LIBVIRT, false],
    ['in a prepared image', PLAIN, true],
  ] as const)
    t.test(`boots without a warning ${what}`, async (t) => {
      const { guest, first } = await host.addGuest()
      const id = isPrepared ? 'srv-image' : 'srv-smbio'
      await host.put(anInstance({ id, interfaces: [first] }), 'none')
      const machine = await startGuest(t, guest, dmi, isPrepared)
      await machine.write(
        '/etc/cloud/cloud.cfg.d/99_test.cfg', // without modules that would try to grow disks
        'disable_network_activation: true\ncloud_init_modules: [set_hostname]\n',
      )
      t.same(await identify(machine), { status: 0, chosen: '[ Ec2, None ]' })
      let log = ''
      for (const stage of [['--local'], []]) {
        const { status, stderr } = await machine.run(['cloud-init', 'init', ...stage])
        t.equal(status, 0, `cloud-init init ${stage.join()}`)
        log += stderr
      }
      t.equal(await text(machine, '/var/lib/cloud/data/instance-id'), `${id}\n`)
      t.same(
        log.split('\n').filter((line) => /\[(WARNING|ERROR|CRITICAL)\]|Traceback/.test(line)),
        [],
        'no warning',
      )
      t.equal(
        (await machine.run(['sh', '-c', 'ls /var/lib/cloud/instance/warnings'])).stdout.toString(),
        '',
        'nor at login',
      )
    })
})

function dmiOf(strings: RegExp, uuid: RegExp, content: string): Dmi {
  const found = Object.fromEntries(Array.from(content.matchAll(strings), ([, name, value]) => [name!, value!]))
  return {
    sys_vendor: found['manufacturer']!,
    product_name: found['product']!,
    product_serial: found['serial']!,
    product_uuid: uuid.exec(content)![1]!,
  }
}

/** Starts a guest with SMBIOS strings, prepared as docs/guests.md says or not. */
async function startGuest(t: Test, guest: Guest, dmi: Dmi, isPrepared: boolean): Promise<Machine> {
  const machine = await startVm(t, guest, dmi)
  if (isPrepared) await runExample(machine, executed('docs/clients.md', 'image'))
  return machine
}

/** Runs commands of docs/guests.md beside a copy of deploy/guest/. */
async function runExample(machine: Machine, commands: string): Promise<void> {
  await machine.run(['mkdir', '-p', '/run/image/deploy/guest'])
  for (const file of readdirSync(HELPERS)) await machine.write(`/run/image/deploy/guest/${file}`, helper(file))
  const { status, stderr } = await machine.run(['sh', '-euc', `cd /run/image\n${commands}`])
  if (status !== 0) throw new Error(stderr)
}

/** Runs ds-identify, as at boot. `chosen`: the data sources that it chooses. */
async function identify(
  machine: Machine,
): Promise<{ readonly status: number | null; readonly chosen: string | undefined }> {
  const { status } = await machine.run(['/usr/lib/cloud-init/ds-identify'])
  const result = await text(machine, '/run/cloud-init/cloud.cfg')
  return { status, chosen: /^datasource_list: (.*)$/m.exec(result)?.[1] }
}

async function text(machine: Machine, path: string): Promise<string> {
  return (await machine.read(path)).toString()
}
