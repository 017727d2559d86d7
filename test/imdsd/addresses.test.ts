/** Which addresses a host has lost. conditions.test.ts has what follows from it. */
import t from 'tap'
import { must } from '../support/programs/processes.ts'
import { makeHypervisor, withoutNamespaces } from '../support/netns/namespaces.ts'

t.test(
  'an address in another routing table and a tentative IPv6 address do not count as missing',
  { skip: withoutNamespaces() },
  async (t) => {
    const hypervisor = await makeHypervisor()
    t.teardown(() => hypervisor.remove())
    const ip = (words: string) => must([...hypervisor.within, 'ip', ...words.split(' ')])
    await ip('link add bridge type bridge')
    await ip('link set bridge up')
    // tentative: without a carrier, duplicate address detection does not end
    await ip('address add fd00:ec2::1/64 dev bridge')
    await ip('route add local 192.0.2.1 dev lo scope host table 10')
    const script = `import { buildAddressWatch } from ${JSON.stringify(new URL('../../src/imdsd/address-watch.ts', import.meta.url).pathname)}
    const watch = buildAddressWatch(${JSON.stringify(['192.0.2.1', '192.0.2.2', 'fd00:ec2::1', 'fd00:ec2::2', '0.0.0.0', '::'])}, () => {})
    await watch.start()
    watch.stop()
    console.log(JSON.stringify(watch.missing()))`
    t.same(
      JSON.parse(
        (await must([...hypervisor.within, process.execPath, '--input-type=module', '--eval', script])).toString(),
      ),
      ['192.0.2.2', 'fd00:ec2::2'],
    )
  },
)
