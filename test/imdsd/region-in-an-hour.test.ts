/**
 * docs/region.md from hosts that systemd boots, word by word: only the repository is another one. Then jobs of the region
 * on the same hosts: a backup is restored, the fleet is upgraded, a hypervisor is replaced. Debian's Redis, PostgreSQL,
 * Prometheus and ssh have their own configurations, and all users are those of the pages.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { bootBareHost, withoutSystemd, type BootedHost } from '../support/netns/booted-host.ts'
import type { Guest, Link } from '../support/netns/namespaces.ts'
import { without } from '../support/packages.ts'
import { makeRepository } from '../support/programs/apt-repository.ts'
import { until } from '../support/programs/daemon.ts'
import { must } from '../support/programs/processes.ts'
import { serveDirectory } from '../support/programs/web-server.ts'
import { shortDirectory } from '../support/test-directory.ts'
import { executed } from '../tools/documents.ts'

t.setTimeout(900_000) // as under `npm test`: it builds the packages, and installs Node.js three times
/** Of the packages. The newest one is installed first. */
const VERSIONS = ['1.0.0', '1.0.1']
const UNITS = ['redis-server.service', 'postgresql.service', 'postgresql@.service', 'prometheus.service']
/** Each hypervisor with its address. */
const HYPERVISORS = { hv1: '10.1.0.11', hv2: '10.1.0.12', hv3: '10.1.0.13' }
/** Requests the instance id repeatedly until the file $0 exists. Prints each failure, then the number of responses. */
const POLL = `
n=0
until [ -e "$0" ]; do
  curl -sS --fail --max-time 5 http://169.254.169.254/latest/meta-data/instance-id > /dev/null && n=$((n + 1))
  sleep 0.05
done 2>&1
echo "$n responses"
`

/** Joins the hosts to the network 10.1.0.0/24: the first has the address .10, the others .11, .12, .13. */
async function connect([control, ...others]: readonly BootedHost[]): Promise<void> {
  const ip = ({ within }: BootedHost, command: string) => must([...within, 'ip', ...command.split(' ')])
  await ip(control!, 'link add mgmt type bridge')
  await ip(control!, 'address add 10.1.0.10/24 dev mgmt')
  await ip(control!, 'link set mgmt up')
  for (const [i, other] of others.entries()) {
    await ip(control!, `link add to${i} master mgmt type veth peer name mgmt netns ${other.pid}`)
    await ip(control!, `link set to${i} up`)
    await ip(other, `address add 10.1.0.1${i + 1}/24 dev mgmt`)
    await ip(other, 'link set mgmt up')
  }
}

/** Lets root of the first host log in at the others, which it knows by their names. */
async function addSsh([control, ...others]: readonly BootedHost[]): Promise<void> {
  await control!.shell(
    'mkdir -p /root/.ssh && rm -f /root/.ssh/* && ssh-keygen -q -t ed25519 -N "" -f /root/.ssh/id_ed25519',
  )
  const names = Object.entries(HYPERVISORS).map(([name, address]) => `${address} ${name}\n`)
  await control!.shell('cat >> /etc/hosts; echo "StrictHostKeyChecking accept-new" > /root/.ssh/config', names.join(''))
  const key = await control!.shell('cat /root/.ssh/id_ed25519.pub')
  for (const other of others) {
    await other.shell('mkdir -p /root/.ssh /run/sshd && cat > /root/.ssh/authorized_keys && ssh-keygen -A', key)
    await other.shell('/usr/sbin/sshd -o UsePAM=no')
  }
}

const skip =
  withoutSystemd() ||
  without('redis-server', 'postgres', 'prometheus', 'sshd', 'strip', 'gpg', 'dpkg-scanpackages', 'curl', 'openssl')

t.test('from empty hosts to a guest, by the commands of the page', { skip }, async (t) => {
  const served = await makeRepository(t, VERSIONS)
  const control = await bootBareHost(t, [])
  const [hv1, hv2, hv3] = [await bootBareHost(t, []), await bootBareHost(t, []), await bootBareHost(t, [])]
  const hosts = [control, hv1, hv2, hv3]
  await connect(hosts)
  let url = ''
  for (const host of hosts) {
    url = await serveDirectory(t, host, served)
    // Debian's repositories cannot be reached, and the index of man pages takes long
    await host.shell('rm -rf /etc/apt/sources.list* /var/lib/apt/lists/* /var/lib/man-db/auto-update')
    await host.shell('mkdir -p /etc/apt/sources.list.d')
  }
  for (const unit of UNITS)
    await control.shell(
      `cat > /usr/lib/systemd/system/${unit}`,
      readFileSync(`/usr/lib/systemd/system/${unit}`, 'utf8'),
    )
  // as their installation does. systemd here has no directory for what postgresql-generator makes
  await control.shell(
    'mkdir /etc/systemd/system/postgresql.service.wants && ln -s /usr/lib/systemd/system/postgresql@.service ' +
      '/etc/systemd/system/postgresql.service.wants/postgresql@15-main.service && ' +
      'systemctl daemon-reload && systemctl start redis-server postgresql',
  )
  await addSsh(hosts)
  const run = (host: BootedHost, code: string) =>
    host.shell(
      `export DEBIAN_FRONTEND=noninteractive PATH=/usr/local/bin:$PATH; exec 2>&1; ${code.replaceAll('https://packages.example.com', url)}`,
    )

  await t.test('packages, keys, Redis, PostgreSQL', async (t) => {
    for (const host of hosts) await run(host, executed('docs/region.md', 'packages'))
    await run(control, executed('docs/region.md', 'keys'))
    t.match(await run(control, executed('docs/region.md', 'redis')), /OK\n$/)
    t.match(await run(control, executed('docs/region.md', 'postgresql')), /^(?!.*ERROR)/s)
  })

  const install = async (t: Test, host: BootedHost, name: keyof typeof HYPERVISORS) => {
    const block = executed('docs/region.md', 'hypervisor')
    const named = block.replace('name=hv1 address=10.1.0.11', `name=${name} address=${HYPERVISORS[name]}`)
    t.match(await run(host, named), '"ready":true')
  }
  const redis = (user: string, command: string) => {
    const as = user === '' ? '' : `REDISCLI_AUTH=$(cat /root/region/${user}.password) `
    const option = user === '' ? '' : `--user ${user} `
    return control.shell(
      `${as}redis-cli --tls --cacert /root/region/ca.crt -h control.gb1.example.com ${option}${command} 2>&1`,
    )
  }

  await t.test(
    'the users of Redis may do what they need, also after a restart, and nobody else anything',
    async (t) => {
      const secret = (await control.shell('cat /root/region/admin.password')).trim()
      for (const start of ['the first start', 'a restart']) {
        await until(async () => (await redis('admin', 'PING')) === 'PONG\n', 'Redis to answer')
        t.match(await redis('', 'PING'), /NOAUTH/, start)
        for (const user of ['imds-hv1', 'imds-hv2', 'imds-publisher'])
          t.match(await redis(user, 'SET x y'), /NOPERM/, `${user} after ${start}`)
        t.equal(await redis('imds-hv2', "GET 'imds:{gb1}:none'"), '\n')
        t.notMatch(await control.shell('cat /etc/redis/users.acl'), secret, 'passwords are hashes')
        await control.shell('systemctl restart redis-server')
      }
    },
  )

  await t.test('Redis gets the user of a further hypervisor, and keeps it', async (t) => {
    t.equal(await run(control, executed('docs/region.md', 'further hypervisor')), 'OK\nOK\n')
    await control.shell('systemctl restart redis-server')
    await until(async () => (await redis('imds-hv3', 'PING')) === 'PONG\n', 'Redis to answer')
    t.match(await redis('imds-hv3', "SET 'imds:{gb1}:announcement:hv2' x"), /NOPERM/)
    t.equal(await redis('imds-hv3', "SET 'imds:{gb1}:announcement:hv3' x"), 'OK\n')
  })

  await t.test('the control plane works, and finds a key that its user cannot read', async (t) => {
    t.match(await run(control, executed('docs/region.md', 'control plane')), /^\+ zone zon-remk1$[^]*"ready":true/m)
    t.equal(await control.shell('systemctl is-enabled imds-api'), 'enabled\n')
    const dropIn = '/etc/systemd/system/imds-api.service.d/api-tls.conf'
    await control.shell(
      `mv ${dropIn} /tmp; printf 'IMDS_API_TLS_%s_FILE=/etc/imds/api.%s\\n' CERT pem KEY key >> /etc/imds/imds-api.env`,
    )
    const fault = 'IMDS_API_TLS_KEY_FILE /etc/imds/api.key cannot be read: EACCES (read as user imds-api'
    t.match(await control.shell('imds-api --check 2>&1; echo status $?'), fault)
    t.match(await control.shell('imds-api --check 2>&1; echo status $?'), /status 78\n$/)
    t.match(
      await control.shell('imds-api doctor || true'),
      new RegExp(`^failure +files +${fault.replace('(', '\\(')}`, 'm'),
    )
    await control.shell(`mv /tmp/api-tls.conf ${dropIn}; sed -i /^IMDS_API_TLS/d /etc/imds/imds-api.env`)
    t.match(await control.shell('imds-api --check'), 'the tables are those of this version')
  })

  await t.test('two hypervisors with firewall', async (t) => {
    await run(control, executed('docs/region.md', 'copy'))
    await install(t, hv1, 'hv1')
    await install(t, hv2, 'hv2')
    await until(
      async () => /^hv1 .* 0 .*ago\nhv2 .* 0 .*ago$/m.test(await control.shell('imds-api hypervisors')),
      'imds-api to see both',
    )
  })

  let server: { readonly id: string; readonly link: Link & { readonly device: string }; readonly guest: Guest }
  const ask = async () =>
    (await must([...server.guest.within, 'sh', '-c', executed('docs/region.md', 'guest')])).toString()

  /** The guest asks for its id until the result is called, which returns what POLL prints. */
  const poll = (t: Test): (() => Promise<string>) => {
    const end = join(shortDirectory(t), 'end')
    const polled = must([...server.guest.within, 'sh', '-c', POLL, end])
    const stop = async () => {
      writeFileSync(end, '')
      return (await polled).toString()
    }
    t.teardown(stop)
    return stop
  }

  await t.test('the first guest reads its metadata, also after every server was restarted', async (t) => {
    const { id } = JSON.parse((await run(control, executed('docs/region.md', 'create'))).replace(/^[^{]*/, '')) as {
      id: string
    }
    const record = (await run(hv1, executed('docs/region.md', 'wait').replaceAll('srv-x1y2z', id))).replace(
      /^[^{]*/,
      '',
    )
    const { interfaces } = JSON.parse(record) as {
      interfaces: { id: string; macAddress: string; ipv4Addresses: string[] }[]
    }
    const [{ id: interfaceId, macAddress, ipv4Addresses }] = interfaces as [(typeof interfaces)[0]]
    const link = { address: ipv4Addresses[0]!, gateway: '10.240.255.254', macAddress, device: `tap-${interfaceId}` }
    server = { id, link, guest: await hv1.addGuest(link) }
    t.equal(await ask(), id)
    await run(control, executed('docs/region.md', 'prometheus'))
    const targets = "curl -fsS 'http://127.0.0.1:9090/api/v1/query?query=up==1' | grep -o '\"instance\"' | wc -l"
    await until(async () => (await control.shell(targets)) === '3\n', 'Prometheus to scrape all', 60_000)
    t.match(await run(control, executed('docs/region.md', 'restart control')), / 0 failures$/m)
    t.equal(await ask(), id)
    t.match(await run(hv1, executed('docs/region.md', 'restart hypervisor')), / 0 warnings, 0 failures$/m)
    t.match(
      await run(hv2, `${executed('docs/region.md', 'restart hypervisor').trim()} || [ $? = 1 ]`),
      / 0 failures$/m,
      'no record names it',
    )
    t.equal(await ask(), id)
    await until(async () => (await control.shell(targets)) === '3\n', 'Prometheus to scrape all again', 60_000)
  })

  await t.test('a backup is restored by the users of the page', async (t) => {
    const servers = "echo 'select id from servers' | runuser -u postgres -- psql --tuples-only imds"
    const before = await control.shell(`cd /; ${servers}`)
    await run(control, `cd /root/region; ${executed('docs/operations/imds-api.md', 'backup')}`)
    await control.shell('systemctl stop imds-api; cd /; runuser -u postgres -- dropdb imds')
    const restored = await run(control, `cd /root/region; ${executed('docs/operations/imds-api.md', 'restore')}`)
    t.match(restored, 'published 0 servers')
    await control.shell('systemctl start imds-api postgresql; systemctl restart postgresql')
    await until(
      () =>
        control.shell('imds-api doctor').then(
          (found) => found.includes(' 0 warnings, 0 failures'),
          () => false,
        ),
      'imds-api to be well',
    )
    t.equal(await control.shell(`cd /; ${servers}`), before)
  })

  await t.test('the firewall is taken out of a hypervisor, and put in again', async (t) => {
    await run(hv2, executed('docs/configuration.md', 'check'))
    await run(hv2, executed('docs/firewall.md', 'take out'))
    t.notMatch(await hv2.shell('nft list tables'), 'imds')
    t.match(await run(hv2, executed('docs/firewall.md', 'install')), /table inet imds[^]*counter unknown_peers/)
  })

  await t.test('the fleet goes back to the former version and to the new one, and no request is refused', async (t) => {
    const stop = poll(t)
    for (const version of [VERSIONS[0]!, VERSIONS[1]!, VERSIONS[1]!]) {
      const block = `version=${version}\n${executed('docs/operations/jobs.md', 'upgrade')}`
      const listed = await run(control, block)
      t.match(listed, new RegExp(`^hv1 +${version} [^]*^hv2 +${version} `, 'm'))
    }
    t.match(await stop(), /^\d+ responses\n$/)
    t.equal(await ask(), server.id)
  })

  await t.test('a hypervisor is replaced by a further one, and its guest is served all the time', async (t) => {
    const region = '/etc/imds/region.yaml'
    await control.shell(`sed -i '/name: hv1/{p;s/hv1/hv3/}' ${region}`)
    t.match(await run(control, `imds-api apply ${region}`), '+ hypervisor hv3')
    await run(control, executed('docs/region.md', 'copy').replace('hv1=10.1.0.11 hv2=10.1.0.12', 'hv3=10.1.0.13'))
    await install(t, hv3, 'hv3')
    await control.shell(
      'cat > /usr/local/bin/migrate && chmod +x /usr/local/bin/migrate',
      '#!/bin/sh -e\nssh hv3 imdsctl wait "$1"\ntouch /tmp/migrating\nuntil [ -e /tmp/migrated ]; do sleep 0.1; done\n',
    )
    const stop = poll(t)
    const block = executed('docs/operations/jobs.md', 'replace with imds-api')
      .replace(
        'imds-api apply region.yaml',
        `sed -i '/name: hv1/s/ }/, removed: true }/' ${region} && imds-api apply ${region}`,
      )
      .replace('--to hv2', '--to hv3')
      .replace('--to hv2', '--to hv3')
    const replaced = run(control, block)
    await until(() => control.shell('test -e /tmp/migrating').then(isTrue, isFalse), 'the migration', 120_000)
    await hv1.hypervisor.handOver(server.link, hv3.hypervisor)
    await control.shell('touch /tmp/migrated')
    t.match(await replaced, /\n- hypervisor hv1\nhv1 is forgotten\n/)
    t.match(await stop(), /^\d+ responses\n$/)
    t.equal(await ask(), server.id)
    t.match(await run(hv3, executed('docs/region.md', 'restart hypervisor')), / 0 failures$/m)
    t.equal(await ask(), server.id)
    t.match(
      await hv1.shell('systemctl is-enabled imds.service imds.socket imds-firewall.service || true'),
      /^(disabled\n){3}$/,
    )
    t.notMatch(await hv1.shell('systemctl is-active imds.service imds.socket || true'), /^active/m)
    t.notMatch(await control.shell('imds-api hypervisors'), /^hv1/m)
  })
})

const isTrue = () => true
const isFalse = () => false
