/**
 * docs/region.md from hosts that systemd boots, word by word: only the repository is another one. Then jobs of the region
 * on the same hosts: a backup is restored, the fleet is upgraded, a hypervisor is replaced. Debian's Redis, PostgreSQL,
 * Prometheus and ssh have their own configurations, and all users are those of the pages.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { withoutSystemd, type BootedHost } from '../support/netns/booted-host.ts'
import type { Guest, Link } from '../support/netns/namespaces.ts'
import { bootRegion, HYPERVISORS, runInSteps } from '../support/netns/region-hosts.ts'
import { without } from '../support/packages.ts'
import { makeRepository } from '../support/programs/apt-repository.ts'
import { until } from '../support/programs/daemon.ts'
import { must } from '../support/programs/processes.ts'
import { shortDirectory } from '../support/test-directory.ts'
import { executed, read } from '../tools/documents.ts'

t.setTimeout(1_750_000) // as under `npm test`: it builds the packages, and installs Node.js four times
/** Of the packages. The newest one is installed first. */
const VERSIONS = ['1.0.0', '1.0.1']
/** Requests the instance id repeatedly until the file $0 exists. Prints each failure, then the number of responses. */
const POLL = `
n=0
until [ -e "$0" ]; do
  curl -sS --fail --max-time 5 http://169.254.169.254/latest/meta-data/instance-id > /dev/null && n=$((n + 1))
  sleep 0.05
done 2>&1
echo "$n responses"
`

const skip =
  withoutSystemd() ||
  without('redis-server', 'postgres', 'prometheus', 'sshd', 'strip', 'gpg', 'dpkg-scanpackages', 'curl', 'openssl')

t.test('from empty hosts to a guest, by the commands of the page', { skip }, async (t) => {
  const served = await makeRepository(t, VERSIONS)
  const region = await bootRegion(t, served)
  const { control, run } = region
  const [hv1, hv2, hv3] = region.hypervisors
  const hosts = [control, ...region.hypervisors]

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
  const redis = (user: string, command: string, server = 'control') => {
    const as = user === '' ? '' : `REDISCLI_AUTH=$(cat /root/region/${user}.password) `
    const option = user === '' ? '' : `--user ${user} `
    return control.shell(
      `${as}redis-cli --tls --cacert /root/region/ca.crt -h ${server}.gb1.example.com ${option}${command} 2>&1`,
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
    const api = executed('docs/operations/imds-api.md', 'upgrade-api')
    for (const version of VERSIONS) {
      await run(control, `version=${version}\n${api.replace(/api1=.* api2=[\d.]+/, 'control=127.0.0.1')}`)
      t.match(await control.shell('imds-api --version'), version)
      const block = `version=${version}\n${executed('docs/operations/jobs.md', 'upgrade')}`
      const listed = await run(control, block)
      t.match(listed, new RegExp(`^hv1 +${version} [^]*^hv2 +${version} `, 'm'))
    }
    t.match(await stop(), /^\d+ responses\n$/)
    t.equal(await ask(), server.id)
  })

  /** Runs a block that replaces a hypervisor while its guest asks, with `migrate`, and failures at its last steps. */
  const replace = async (t: Test, block: string, from: BootedHost, to: BootedHost, name: string, failing: string) => {
    await control.shell(
      'rm -f /tmp/migrat*; cat > /usr/local/bin/migrate; chmod +x /usr/local/bin/migrate',
      `#!/bin/sh -e\nssh ${name} imdsctl wait "$1"\ntouch /tmp/migrating\nuntil [ -e /tmp/migrated ]; do sleep 0.1; done\n`,
    )
    const stop = poll(t)
    const replaced = runInSteps(t, region, block, failing)
    await until(() => control.shell('test -e /tmp/migrating').then(isTrue, isFalse), 'the migration', 300_000)
    await from.hypervisor.handOver(server.link, to.hypervisor)
    await control.shell('touch /tmp/migrated')
    const { printed, failed } = await replaced
    t.match(await stop(), /^\d+ responses\n$/)
    t.match(
      await from.shell('systemctl is-enabled imds.service imds.socket imds-firewall.service || true'),
      /^(disabled\n){3}$/,
    )
    t.notMatch(await from.shell('systemctl is-active imds.service imds.socket || true'), /^active/m)
    t.match(await run(to, executed('docs/region.md', 'restart hypervisor')), / 0 failures$/m)
    t.equal(await ask(), server.id)
    return { printed, failed }
  }

  await t.test('a hypervisor is replaced by a further one, and its guest is served all the time', async (t) => {
    const file = '/etc/imds/region.yaml'
    await control.shell(`sed -i '/name: hv1/{p;s/hv1/hv3/}' ${file}`)
    t.match(await run(control, `imds-api apply ${file}`), '+ hypervisor hv3')
    await run(control, executed('docs/region.md', 'copy').replace('hv1 hv2', 'hv3'))
    await install(t, hv3, 'hv3')
    await control.shell(`sed -i '/name: hv1/s/ }/, removed: true }/' ${file}`)
    const block = executed('docs/operations/jobs.md', 'replace with imds-api').replaceAll('--to hv2', '--to hv3')
    const { printed, failed } = await replace(t, block, hv1, hv3, 'hv3', 'forget|apply')
    t.match(printed, /\n- hypervisor hv1\n/)
    t.equal(failed, 2)
    t.notMatch(await control.shell('imds-api hypervisors'), /^hv1/m)
  })

  await t.test('hv1 gets a replica of Redis, with the users of the first one', async () => {
    for (const host of hosts) await host.shell('echo 10.1.0.11 new.gb1.example.com >> /etc/hosts')
    const [certificate] = /openssl req -newkey[^]* server.crt\n/.exec(executed('docs/region.md', 'keys'))!
    await control.shell('tar -C /root -c region | ssh hv1 tar -C /root -x')
    await hv1.shell(`cd /root/region; ${certificate.replaceAll('control.gb1', 'new.gb1')}`)
    await run(hv1, executed('docs/region.md', 'redis').replaceAll('control.gb1', 'new.gb1'))
    await control.shell('ssh hv1 "cat > /etc/redis/users.acl" < /etc/redis/users.acl')
    await hv1.shell(`cat >> /etc/redis/imds.conf << END
replicaof control.gb1.example.com 6379
tls-replication yes
masteruser admin
masterauth $(cat /root/region/admin.password)
END
systemctl restart redis-server`)
    await until(async () => (await redis('admin', 'INFO replication', 'new')).includes('_status:up'), 'the replica')
  })

  await t.test('passwords change on all servers of Redis, and no request is refused', async (t) => {
    const block = executed('docs/operations/jobs.md', 'rotate a password')
      .replace(/^servers=(.*)$/m, 'servers="$1 rediss://new.gb1.example.com"')
      .replace('user=imds-hv1 host=hv1', 'user=imds-hv3 host=hv3')
    const [, forApi] = /`(user=imds-publisher [^`]*)`/.exec(read('docs/operations/jobs.md'))!
    const stop = poll(t)
    await hv1.shell('systemctl stop redis-server')
    t.match(await run(control, `{ ${block}} || true`), 'stopped at rediss://new.gb1.example.com')
    await hv1.shell('systemctl start redis-server')
    for (const { user, changed, failing, failures } of [
      { user: 'imds-hv3', changed: block, failing: 'new.*SAVE|^ssh', failures: 4 },
      { user: 'imds-publisher', changed: block.replace(/^.*\n/, `${forApi!}\n`), failing: 'curl', failures: 1 },
    ]) {
      const old = await control.shell(`cat /root/region/${user}.password`)
      t.equal((await runInSteps(t, region, changed, failing)).failed, failures)
      for (const host of [control, hv1]) await host.shell('systemctl restart redis-server')
      await control.shell('cat > /root/region/old.password', old)
      for (const server of ['control', 'new']) {
        await until(async () => /PONG|NOPERM/.test(await redis(user, 'PING', server)), 'Redis to answer')
        const refused = await control.shell(
          `cd /root/region; REDISCLI_AUTH=$(cat old.password) redis-cli --tls --cacert ca.crt -h ${server}.gb1.example.com --user ${user} PING 2>&1`,
        )
        t.match(refused, /WRONGPASS[^]*NOAUTH/, `${user} at ${server}, after a restart`)
      }
    }
    t.match(await run(control, executed('docs/region.md', 'restart control')), / 0 failures$/m)
    t.match(await run(hv3, executed('docs/region.md', 'restart hypervisor')), / 0 failures$/m)
    t.match(await stop(), /^\d+ responses\n$/)
  })

  /** Empties the Redis of a host, which is then no replica. */
  const empty = (host: BootedHost) =>
    host.shell(
      'systemctl stop redis-server; sed -i /^replicaof/d /etc/redis/imds.conf; rm -rf /var/lib/redis/*; systemctl start redis-server',
    )

  await t.test('a region of imds-api moves to another Redis, and no request is refused', async (t) => {
    await empty(hv1)
    const stop = poll(t)
    const copy = executed('docs/operations/jobs.md', 'copy a region with imds-api')
    t.equal((await runInSteps(t, region, copy, 'reconcile')).failed, 1)
    const block = executed('docs/operations/jobs.md', 'move a region').replace('hv1 hv2', 'hv2 hv3')
    await redis('admin', 'ACL DELUSER imds-hv2', 'new')
    t.match(await run(control, `{ ${block}} || true`), /WRONGPASS[^]*stopped at hv2/)
    await redis('admin', 'ACL LOAD', 'new')
    t.equal((await runInSteps(t, region, block, '^ssh hv3')).failed, 2)
    await control.shell('systemctl stop redis-server')
    await run(hv3, executed('docs/region.md', 'restart hypervisor'))
    t.match(await control.shell('systemctl restart imds-api; sleep 5; imds-api doctor'), / 0 failures$/m)
    t.match(await stop(), /^\d+ responses\n$/)
  })

  await t.test('a hypervisor is replaced without imds-api', async (t) => {
    const refused = await control.shell('imdsctl drain hv3 2>&1 || echo status $?')
    t.match(refused, /imds-api publishes this region[^]*status 2/)
    await control.shell('systemctl disable --now imds-api')
    t.match(await redis('imds-publisher', "DEL 'imds:{gb1}:api'", 'new'), '1')
    const block = executed('docs/operations/jobs.md', 'replace').replaceAll('hv1', 'hv3')
    const { printed, failed } = await replace(t, block, hv3, hv2, 'hv2', '^migrate|evacuate hv3$|^ssh|forget')
    t.match(printed, /\nhv3 is forgotten\n/)
    t.equal(failed, 4)
  })

  await t.test('a region moves to another Redis without imds-api', async (t) => {
    await empty(control)
    const stop = poll(t)
    const toControl = (block: string) => block.replace('new.gb1', 'control.gb1')
    const copy = toControl(executed('docs/operations/jobs.md', 'copy a region'))
    const { printed, failed } = await runInSteps(t, region, copy, 'import')
    t.match(printed, /1 records, \d+ tombstones: moved\n[^]*1 record, 1 published/)
    t.equal(failed, 1)
    const block = toControl(executed('docs/operations/jobs.md', 'move a region')).replace('hv1 hv2', 'hv2')
    t.equal((await runInSteps(t, region, block, 'curl')).failed, 1)
    await hv1.shell('systemctl stop redis-server')
    t.match(await run(hv2, executed('docs/region.md', 'restart hypervisor')), / 0 failures$/m)
    t.match(await stop(), /^\d+ responses\n$/)
    t.equal(await ask(), server.id)
  })
})

const isTrue = () => true
const isFalse = () => false
