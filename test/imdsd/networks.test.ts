/**
 * Tenants that use the same address on separate links (contract E4). systemd binds a socket to each link, and the
 * socket's name is that of the network (systemd/imds-network@.socket).
 */
import type { Readiness } from '../../src/imdsd/operator/documents.ts'
import t, { type Test } from 'tap'
import { bootHost, withoutSystemd, type BootedHost } from '../support/netns/booted-host.ts'
import { until } from '../support/programs/daemon.ts'
import { must } from '../support/programs/processes.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startLoad } from '../support/load/load.ts'
import type { Guest, Link } from '../support/netns/namespaces.ts'
import { read } from '../tools/documents.ts'

/** imdsctl as the package installs it. */
const IMDSCTL = '/usr/lib/imds-node/node /usr/lib/imds/dist/imdsctl.js'

const NETWORKS = ['red', 'blue'] as const
const ID = '/latest/meta-data/instance-id'

const linkOf = (network: string): Link => ({
  address: '10.0.0.2/30',
  gateway: '10.0.0.1',
  macAddress: '02:24:19:00:00:ee',
  device: `br-${network}`,
})

const recordOf = (network: string) =>
  anInstance({
    id: `srv-${network}`,
    interfaces: [{ id: `int-${network}`, macAddress: '02:24:19:00:00:ee', network, ipv4Addresses: ['10.0.0.2/30'] }],
  })

t.test(
  'E4: two links whose guests have the same address, each with its own socket',
  { skip: withoutSystemd() },
  async (t) => {
    const host = await bootHost(t, ['red', 'blue', 'green'].map(linkOf))
    const [red, blue, green] = host.guests as [Guest, Guest, Guest]
    await host.shell('echo IMDS_LISTEN=169.254.169.254:80 >> /etc/imds/imds.env')
    const guests = { red, blue }
    const idOf = async (guest: Guest) => (await guest.ask({ path: ID })).body.toString()
    /** The sockets that listen on port 80. */
    const listening = async () =>
      ((await host.shell('ss --no-header --listening --tcp --numeric "sport = :80"')).match(/\S+:80\b/g) ?? []).sort()

    await t.test('the socket of the first network replaces imds.socket, enabled by the installation', async (t) => {
      await host.systemctl('enable', '--now', 'imds-address', 'imds.socket', 'imds')
      t.same(await listening(), ['169.254.169.254:80'])
      await enable(host, 'red')
      t.same(await listening(), ['169.254.169.254%br-red:80'])
      await until(async () => (await idOf(red)) === 'srv-red', 'its instance')
    })

    await enable(host, 'blue')
    await until(
      async () => (await idOf(red)) === 'srv-red' && (await idOf(blue)) === 'srv-blue',
      "each network's instance",
    )

    await t.test('two guests whose connections have equal addresses and ports are still distinct', async (t) => {
      const loads = await Promise.all(
        NETWORKS.map((network) => startLoad(guests[network], { clients: 1, keepAlive: true, localPort: 40_000 })),
      )
      await Promise.all(loads.map((load) => load.more(300)))
      const connections = await host.shell(
        'ss --no-header --numeric state established "( sport = :80 and dport = :40000 )"',
      )
      t.equal(connections.trim().split('\n').length, 2, 'both connections exist at the same time')
      for (const [i, load] of loads.entries()) {
        const figures = await load.stop()
        t.same([figures.failed, figures.answers[ID]], [[], [`srv-${NETWORKS[i]!}`]])
      }
    })

    const ready = async () => {
      const { ready: isReady, conditions } = JSON.parse(await host.shell('curl -s 127.0.0.1:9169/readyz')) as Readiness
      return { ready: isReady, problem: conditions.find(({ code }) => code === 'network-not-served')?.text }
    }
    /** Stops everything, and starts what is enabled as a boot does: each target in a transaction of its own. */
    const begin = async (...targets: string[]) => {
      await host.shell(
        'systemctl stop multi-user.target basic.target sockets.target imds-address imds.service imds.socket "imds-network@*.socket"',
      )
      for (const target of targets) await host.systemctl('start', target)
    }
    const boot = async (...targets: string[]) => {
      await begin(...targets)
      await until(async () => (await host.show('ActiveState'))['ActiveState'] === 'active', 'READY')
    }
    // As in a distribution, where one transaction starts everything. Our host lacks these dependencies.
    await host.dropIn('multi-user.target', '[Unit]\nRequires=basic.target\nAfter=basic.target')
    await host.dropIn('basic.target', '[Unit]\nWants=sockets.target\nAfter=sockets.target')

    await t.test('at boot the sockets of networks listen, although imds.socket is enabled too', async (t) => {
      await host.systemctl('enable', 'imds.socket')
      for (const targets of [['multi-user.target'], ['sockets.target', 'multi-user.target'], ['imds.service']]) {
        await boot(...targets)
        t.same(await listening(), ['169.254.169.254%br-blue:80', '169.254.169.254%br-red:80'])
        t.same([await idOf(red), await idOf(blue)], ['srv-red', 'srv-blue'])
        await until(async () => (await ready()).ready, 'readiness')
      }
      await host.systemctl('start', 'imds.socket')
      t.equal((await host.shell('systemctl is-active imds.socket || true')).trim(), 'inactive')
    })

    await t.test('without the link of a network the daemon serves the others and is not ready', async (t) => {
      await host.shell(`cat > /store/srv-yellow.json`, JSON.stringify(recordOf('yellow')))
      await host.dropIn('imds-network@yellow.socket', '[Socket]\nBindToDevice=br-yellow')
      await host.systemctl('enable', 'imds-network@green.socket', 'imds-network@yellow.socket')
      await host.shell(`${listed('green')}; ${listed('yellow')}`)
      await boot('multi-user.target')
      t.same(await listening(), ['169.254.169.254%br-blue:80', '169.254.169.254%br-red:80'])
      t.same([await idOf(red), await idOf(blue)], ['srv-red', 'srv-blue'])
      const { ready: isReady, problem } = await ready()
      t.notOk(isReady)
      for (const network of ['green', 'yellow']) {
        const text = `IMDS_LISTEN names ${network}=169.254.169.254:80, and no socket of systemd listens there`
        t.match(problem, text)
        t.match(await host.shell('cat /log'), new RegExp(`"level":"warn".*"code":"network-not-served".*${text}`))
      }
      t.match(
        await host.shell('curl -s 127.0.0.1:9169/metrics'),
        /^imds_condition\{code="network-not-served",severity="failure"\} 1$/m,
      )
      t.match(
        await host.shell(`${IMDSCTL} explain 10.0.0.2 --network yellow`),
        '10.0.0.2 on network yellow: no-listener, since this daemon does not serve network yellow; it serves',
      )
      await host.systemctl('disable', 'imds-network@yellow.socket')
    })

    /** The daemon does not start, since nothing separates the networks of IMDS_LISTEN. */
    const servesNobody = async (t: Test) => {
      await begin('multi-user.target')
      await until(async () => (await host.show('ActiveState', 'ExecMainStatus'))['ExecMainStatus'] === '78', 'its end')
      t.same(await listening(), [])
      t.match(await host.shell('tail -n 2 /log'), 'IMDS_LISTEN names networks (default, red, blue, green, yellow) that')
    }
    await t.test('without any socket of its networks, the daemon serves nobody rather than all links', async (t) => {
      const drops = '/etc/systemd/system/imds-network@{red,blue}.socket.d'
      await host.shell(`bash -c 'for drop in ${drops}; do mv $drop $drop.off; done'; systemctl daemon-reload`)
      await servesNobody(t)
      await host.shell(`bash -c 'for drop in ${drops}; do mv $drop.off $drop; done'; systemctl daemon-reload`)
      await boot('multi-user.target')
      t.same([await idOf(red), await idOf(blue)], ['srv-red', 'srv-blue'])
    })

    await t.test('a socket that another unit wants replaces imds.socket too, even if it cannot listen', async (t) => {
      await host.systemctl('disable', ...['red', 'blue', 'green'].map((network) => `imds-network@${network}.socket`))
      await host.systemctl('add-wants', 'multi-user.target', 'imds-network@yellow.socket')
      await servesNobody(t)
      await host.systemctl('disable', 'imds-network@yellow.socket')
      await host.systemctl('enable', 'imds-network@red.socket', 'imds-network@blue.socket')
      await boot('multi-user.target')
      t.same([await idOf(red), await idOf(blue)], ['srv-red', 'srv-blue'])
    })

    await t.test('G3: a restart that adds a network fails no request on the other networks', async (t) => {
      const loads = await Promise.all(
        NETWORKS.map((network) => startLoad(guests[network], { clients: 2, keepAlive: false })),
      )
      await Promise.all(loads.map((load) => load.more(100)))
      await enable(host, 'green')
      await until(async () => (await idOf(green)) === 'srv-green', 'the new network')
      for (const load of loads) t.same((await load.stop()).failed, [])
    })
  },
)

t.test(
  'a network whose link is missing delays a restart by its JobTimeoutSec= only',
  { skip: withoutSystemd() },
  async (t) => {
    const host = await bootHost(t, [linkOf('red')], { devices: true })
    const [red] = host.guests as [Guest]
    await host.systemctl('enable', '--now', 'imds-address', 'imds')
    await enable(host, 'red')
    await host.dropIn('imds-network@yellow.socket', '[Socket]\nBindToDevice=br-yellow')
    t.equal(
      (await host.shell('systemctl show --property=JobTimeoutUSec imds-network@yellow.socket')).trim(),
      'JobTimeoutUSec=30s',
    )
    await host.dropIn('imds-network@yellow.socket', '[Unit]\nJobTimeoutSec=2s\n[Socket]\nBindToDevice=br-yellow')
    await host.systemctl('enable', 'imds-network@yellow.socket')
    await host.systemctl('restart', 'imds') // systemd would wait 90 s for the device
    await until(async () => (await red.ask({ path: ID })).body.toString() === 'srv-red', 'its instance')
  },
)

/**
 * The commands in the header of systemd/imds-network@.socket, which add the network `red`. The last one restarts the
 * daemon.
 */
const COMMANDS = read('systemd/imds-network@.socket')
  .split('\n')
  .filter((line) => /^# {3}(sed|mkdir|printf|systemctl) /.test(line))
  .map((line) => line.slice(4))
  .join('\n')

/** The one of them that names a network in IMDS_LISTEN. */
const listed = (network: string) => /^sed .*/m.exec(COMMANDS)![0].replaceAll('red', network)

/**
 * Publishes the record of a network's guest and adds the network by these commands and the other settings that the
 * header asks for.
 */
async function enable(host: BootedHost, network: string): Promise<void> {
  await host.shell(`cat > /store/srv-${network}.json`, JSON.stringify(recordOf(network)))
  await must([...host.within, 'sh', '-c', `echo 2 > /proc/sys/net/ipv4/conf/br-${network}/rp_filter`])
  await host.shell(`set -e; ${COMMANDS.replaceAll('red', network)}`)
}
