/** A host that loses its service address: readiness, metrics, log and launch gate. */
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { must } from '../support/programs/processes.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { makeHypervisor, SERVICE, withoutNamespaces } from '../support/netns/namespaces.ts'
import { testDirectory } from '../support/test-directory.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'

t.test(
  'a lost service address makes the daemon not ready and closes the launch gate until it is back',
  { skip: withoutNamespaces() },
  async (t) => {
    const hypervisor = await makeHypervisor()
    t.teardown(() => hypervisor.remove())
    const ip = (words: string) => must([...hypervisor.within, 'ip', ...words.split(' ')])
    const url = `file:${testDirectory(t)}`
    await (await openStore({ url })).put(anInstance())
    await ip('link add bridge type bridge')
    await ip('link set bridge up')
    // a bridge without ports has no carrier, but its address counts as present
    await ip('address add 169.254.169.253/32 dev bridge')
    await ip('address add fd00:ec2::254/128 dev lo')
    const listen = [`${SERVICE}:80`, '169.254.169.253:80', '[fd00:ec2::254]:80'].join(',')
    const daemon = await startDaemon(t, { IMDS_STORE: url, IMDS_LISTEN: listen }, hypervisor.within)
    const readiness = async () =>
      JSON.parse((await daemon.operator('/readyz')).body.toString()) as Record<string, unknown>
    const run = async (...args: string[]) => {
      const operator = ['--operator', daemon.operatorSocket]
      const { status, stdout, stderr } = await imdsctl([...args, ...operator], { within: hypervisor.within })
      return { status, text: stdout + stderr }
    }
    await until(async () => (await readiness())['ready'] === true, 'the daemon to be ready')
    t.same(
      daemon.log.filter(({ level }) => level === 'error'),
      [],
    )

    for (const [address, dev] of [
      [`${SERVICE}/32`, 'lo'],
      ['fd00:ec2::254/128', 'lo'],
    ] as const) {
      const host = address.replace(/\/.*/, '')
      await ip(`address delete ${address} dev ${dev}`)
      await until(
        async () => (await readiness())['ready'] === false,
        'the daemon to notice that the address is missing',
      )
      t.match(await readiness(), {
        conditions: [
          { code: 'address-missing', text: new RegExp(`^no guest can reach imds at ${host}, `), unready: true },
        ],
        connected: true,
      })
      t.equal(await daemon.metric('imds_condition{code="address-missing",severity="failure"}'), 1)
      t.match(await run('wait', 'srv-abcde', '--revision', '1', '--timeout', '3'), {
        status: 75,
        text: `no guest can reach imds at ${host}`,
      })
      t.match(await run('explain', '10.0.0.2'), {
        status: 0,
        text: `listener        no guest can reach imds at ${host}`,
      })
      await ip(`address add ${address} dev ${dev}`)
      await until(
        async () => (await readiness())['ready'] === true,
        'the daemon to notice that the address has returned',
      )
      t.match(await run('wait', 'srv-abcde', '--revision', '1'), { status: 0 })
    }
    t.same(
      daemon.log.filter(({ code }) => code === 'address-missing').map(({ level }) => level),
      ['warn', 'info', 'warn', 'info'],
      'one line when an address is missing, and one when it is back',
    )
  },
)

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
