/**
 * deploy/ansible with two hosts that systemd boots: the role installs a hypervisor, and an upgrade ends at the first
 * unhealthy one. In place of ssh, Ansible runs a script that enters the namespaces of a host.
 */
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { pipeline } from 'node:stream'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import t, { type Test } from 'tap'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { bootBareHost, LINK, withoutSystemd, type BootedHost } from '../support/netns/booted-host.ts'
import { without } from '../support/packages.ts'
import { makeRepository } from '../support/programs/apt-repository.ts'
import { serveDirectory } from '../support/programs/web-server.ts'
import { run, startChild } from '../support/programs/processes.ts'
import { freePort, startRedis } from '../support/redis/redis.ts'
import { anAuthority } from '../support/redis/tls.ts'
import { shortDirectory, testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'
import { read, ROOT } from '../tools/documents.ts'

t.setTimeout(900_000) // as under `npm test`: it builds and installs Node.js twice
const FORWARDER = new URL('../support/programs/forwarder.ts', import.meta.url).pathname
const KEYS = keyLines('k1')
const VERSIONS = ['1.0.0', '1.0.1'] as const
/** The last two arguments of ssh: the host, here a process in its namespaces, and the command. */
const SSH = `#!/bin/sh
while [ $# -gt 2 ]; do shift; done
exec nsenter --target "$1" --all --root --wd env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c "$2"
`

/** Forwards a port of 127.0.0.1 on a host to the same one here. */
async function forward(t: Test, { within }: BootedHost, port: number, socket: string): Promise<void> {
  const server = createServer((client) => {
    pipeline(client, connect(port, '127.0.0.1'), client, () => undefined) // whichever ends, both are closed
  }).listen(socket)
  await once(server, 'listening')
  t.teardown(() => server.close())
  const forwarder = await startChild([...within, process.execPath, FORWARDER, String(port), socket])
  t.teardown(() => forwarder.stop())
}

/** Runs a playbook for the hosts. Returns its exit status and output. */
async function play(directory: string, playbook: string, ...options: string[]) {
  const env = {
    PATH: process.env['PATH'],
    HOME: directory,
    LC_ALL: 'C.UTF-8',
    ANSIBLE_HOST_KEY_CHECKING: 'false',
    ANSIBLE_NOCOLOR: 'true',
    ANSIBLE_PIPELINING: 'true',
  }
  const inventory = ['--inventory', join(directory, 'inventory.yml')]
  const command = ['ansible-playbook', ...inventory, join(ROOT, 'deploy/ansible', playbook), ...options]
  const { status, stdout, stderr } = await run(command, { env })
  return { status, output: stdout.toString() + stderr }
}

t.test('ansible-lint finds nothing', { skip: without('ansible-lint') }, async (t) => {
  const env = { PATH: process.env['PATH'], HOME: shortDirectory(t), LC_ALL: 'C.UTF-8' }
  const { status, stdout, stderr } = await run(
    ['ansible-lint', '--offline', '--strict', join(ROOT, 'deploy/ansible')],
    {
      env,
    },
  )
  t.equal(status, 0, stdout.toString() + stderr)
})

const skip = withoutSystemd() || without('ansible-playbook', 'redis-cli', 'strip', 'gpg', 'dpkg-scanpackages', 'curl')

t.test('Ansible installs and upgrades two hypervisors', { skip }, async (t) => {
  const directory = shortDirectory(t)
  const served = await makeRepository(t, VERSIONS)
  const hosts: BootedHost[] = []
  for (const link of [LINK, LINK]) hosts.push(await bootBareHost(t, [link]))
  const [one, two] = hosts as [BootedHost, BootedHost]
  let url = ''
  for (const host of hosts) {
    url = await serveDirectory(t, host, served)
    // Debian's repositories cannot be reached, and the index of man pages takes long
    await host.shell(
      'rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/* /var/lib/man-db/auto-update; mkdir /srv/imds',
    )
  }
  const authority = await anAuthority(directory, 'ours')
  const { certFile, keyFile } = await authority.issue('redis')
  const port = await freePort()
  writeFileSync(join(directory, 'users.acl'), read('deploy/redis.acl').replaceAll('>PASSWORD', '>of-admins'))
  const redis = await startRedis(t, [
    ...['--tls-port', String(port), '--tls-ca-cert-file', authority.caFile, '--tls-auth-clients', 'no'],
    ...['--tls-cert-file', certFile, '--tls-key-file', keyFile],
    ...['--aclfile', join(directory, 'users.acl'), '--appendonly', 'yes'],
  ])
  for (const host of hosts) await forward(t, host, port, join(directory, `${host.pid}.sock`))
  const asAdmin = { username: 'admin', password: 'of-admins', retryStrategy: () => 50 }
  const admin = new Redis(redis.port, asAdmin).on('error', () => undefined)
  t.teardown(() => admin.disconnect())
  await admin.call('ACL', 'SETUSER', 'imds-hv1', 'on', '>former')
  const secrets = testDirectory(t, { password: 'of-admins\n', keys: KEYS })
  const store = await openTestStore(t, {
    url: `redis://imds-publisher@127.0.0.1:${redis.port}`,
    region: 'gb1',
    passwordFile: `${secrets}/password`,
    recordKeysFile: `${secrets}/keys`,
  })
  await store.initialise()
  writeFileSync(join(directory, 'ssh'), SSH, { mode: 0o755 })
  const inventory = {
    hypervisors: {
      hosts: { hv1: { ansible_host: one.pid }, hv2: { ansible_host: two.pid } },
      vars: {
        ansible_become: false, // it is root, and needs no sudo
        ansible_ssh_executable: join(directory, 'ssh'),
        ansible_ssh_transfer_method: 'piped',
        ansible_python_interpreter: '/usr/bin/python3',
        imds_repository: url,
        imds_version: VERSIONS[0],
        imds_environment: {
          IMDS_STORE: `rediss://imds-{{ inventory_hostname }}@127.0.0.1:${port}`,
          IMDS_REGION: 'gb1',
          IMDS_HYPERVISOR: '{{ inventory_hostname }}',
          IMDS_FIREWALL: 'required',
        },
        imds_firewall: true,
        imds_redis_servers: [`rediss://127.0.0.1:${port}`],
        imds_redis_ca_file: authority.caFile,
        imds_redis_admin_password: 'of-admins',
        imds_redis_password: 'of-hypervisors',
        imds_record_keys: KEYS,
        imds_health_retries: 10,
      },
    },
  }
  writeFileSync(join(directory, 'inventory.yml'), JSON.stringify(inventory))
  const versions = () =>
    Promise.all(hosts.map(({ shell }) => shell("dpkg-query --show --showformat='${Version}' imds")))
  const upgrade = () => play(directory, 'upgrade.yml', '--extra-vars', `imds_version=${VERSIONS[1]}`)

  await t.test('the role installs the package, its configuration and the Redis user, starts the units', async (t) => {
    const { status, output } = await play(directory, 'install.yml')
    t.equal(status, 0, output)
    t.same(await versions(), [VERSIONS[0], VERSIONS[0]])
    for (const { shell } of hosts)
      t.equal(await shell('systemctl is-active imds-address imds.socket imds imds-firewall'), 'active\n'.repeat(4))
    t.match(await two.shell('cat /etc/imds/imds.env'), /^IMDS_HYPERVISOR=hv2$/m)
    for (const secret of ['redis-password', 'record-keys'])
      t.equal(await one.shell(`stat --format %a /etc/imds/${secret}`), '600\n')
    for (const secret of ['of-admins', 'of-hypervisors', 'of-operators', KEYS.slice(3).trim()])
      t.notOk(output.includes(secret), 'no secret is printed')
    const hypervisors = await store.hypervisors()
    t.same(
      hypervisors.map(({ name, recordKeys }) => [name, recordKeys]),
      [
        ['hv1', ['k1']],
        ['hv2', ['k1']],
      ],
    )
    await redis.kill()
    await redis.restart()
    for (const user of ['imds-hv1', 'imds-hv2']) {
      t.equal(await admin.call('AUTH', user, 'of-hypervisors'), 'OK', 'also after a restart of Redis')
      await t.rejects(admin.call('AUTH', user, 'former'), /WRONGPASS/, 'the former password is refused')
      await admin.call('AUTH', 'admin', 'of-admins')
    }
  })

  await t.test('the role changes nothing that is as it shall be', async (t) => {
    const { status, output } = await play(directory, 'install.yml')
    t.equal(status, 0, output)
    t.match(output, /^hv1 .* changed=0 [^]*^hv2 .* changed=0 /m)
  })

  await t.test('an upgrade ends at the first unhealthy host, also when it is run again', async (t) => {
    await one.dropIn('imds.service', '[Service]\nExecStartPre=/bin/false') // the next start fails
    for (const run of ['first', 'second']) {
      const { status, output } = await upgrade()
      t.not(status, 0, run)
      t.match(output, /^hv1 .* failed=1/m, run)
      t.same(await versions(), [VERSIONS[1], VERSIONS[0]], run)
    }
    t.equal(await two.shell('imdsctl --version; systemctl is-active imds'), `${VERSIONS[0]}\nactive\n`)
  })

  await t.test('when the host is repaired, the upgrade reaches all hosts', async (t) => {
    await one.shell(
      'rm /etc/systemd/system/imds.service.d/test.conf; systemctl daemon-reload; systemctl reset-failed imds; systemctl restart imds',
    )
    const { status, output } = await upgrade()
    t.equal(status, 0, output)
    t.same(await versions(), [VERSIONS[1], VERSIONS[1]])
  })
})
