/**
 * On a host that systemd boots: environment files mean the same to our commands as to systemd, and imdsctl and `imdsd
 * --check` find the variables and the credentials of the service.
 */
import t from 'tap'
import { parseEnvironmentFile } from '../../src/runtime/service-environment.ts'
import { ENVIRONMENT_FILES } from '../support/fixtures/environment-files.ts'
import { bootHost, withoutSystemd, type BootedHost } from '../support/netns/booted-host.ts'
import { until } from '../support/programs/daemon.ts'
import { read } from '../tools/documents.ts'

const PROGRAMS = '/usr/lib/imds/dist'

/** Runs a command on the host: its status, and its output with that of standard error. */
async function ran(host: BootedHost, command: string): Promise<{ status: number; text: string }> {
  const [, text = '', status] = /^([^]*)status (\d+)\n$/.exec(
    await host.shell(`{ ${command}; } 2>&1; echo "status $?"`),
  )!
  return { status: Number(status), text }
}

t.test(
  'systemd and our commands agree on environment files, drop-ins and credentials',
  { skip: withoutSystemd() },
  async (t) => {
    const host = await bootHost(t, [])
    const node = (program: string, args: string) =>
      ran(host, `/usr/lib/imds-node/node ${PROGRAMS}/${program}.js ${args}`)

    await t.test('the parser reads each file as systemd does', async (t) => {
      const files = Object.values(ENVIRONMENT_FILES).map(({ text }) => text)
      await host.shell(
        'cat > /units/read@.service',
        '[Service]\nType=oneshot\nEnvironmentFile=/cases/%i\nExecStart=/usr/bin/env -0\nStandardOutput=truncate:/cases/%i.out\n',
      )
      await host.shell(
        `mkdir /cases; cd /cases; ${files.map((text, i) => `echo ${Buffer.from(text).toString('base64')} | base64 -d > ${i}`).join('; ')}; systemctl daemon-reload`,
      )
      await host.systemctl('start', ...files.map((_text, i) => `read@${i}`))
      const outputs = (
        await host.shell(`cd /cases; for i in $(seq 0 ${files.length - 1}); do base64 -w 0 $i.out; echo; done`)
      )
        .trim()
        .split('\n')
      for (const [i, [what, { text }]] of Object.entries(ENVIRONMENT_FILES).entries()) {
        const entries = Buffer.from(outputs[i]!, 'base64')
          .toString()
          .split('\0')
          .map((entry) => entry.split(/=(.*)/s))
        t.same(
          parseEnvironmentFile(text).variables,
          Object.fromEntries(
            entries.filter(([name]) => /^_?[A-Z]1?$/.test(name!)).map(([name, value]) => [name, value]),
          ),
          what,
        )
      }
    })

    await t.test(
      'with the password drop-in imdsctl reads the store as root; another user has to name the file',
      async (t) => {
        await host.shell('ip link set lo up; umask 077; echo secret > /etc/imds/redis-password')
        await host.shell(
          'cat > /tmp/redis.conf',
          'save ""\ndaemonize yes\nuser imds-publisher on >secret ~* &* +@all\nuser default off\n',
        )
        await host.shell(
          'redis-server /tmp/redis.conf > /dev/null; until redis-cli --user imds-publisher -a secret ping 2> /dev/null | grep -q PONG; do sleep 0.05; done',
        )
        await host.shell(
          'mkdir -p /etc/systemd/system/imds.service.d; cat > /etc/systemd/system/imds.service.d/redis-password.conf; chmod 755 /etc/systemd/system/imds.service.d',
          read('deploy/redis-password.conf'),
        )
        await host.setEnv(
          '; a file for systemd, not for a shell\nIMDS_STORE="redis://imds-publisher@127.0.0.1:6379"\nIMDS_REGION = gb1\nIMDS_HYPERVISOR=\'hv1\'\nIMDS_RESYNC_SECONDS=\\\n60',
        )
        t.same(await node('imdsctl', 'init'), {
          status: 0,
          text: 'the region is initialised: daemons become ready with it\n',
        })
        const asNobody = await ran(
          host,
          `setpriv --reuid=65534 --clear-groups /usr/lib/imds-node/node ${PROGRAMS}/imdsctl.js list`,
        )
        t.equal(asNobody.status, 69, 'without D-Bus systemd answers only root')
        t.match(asNobody.text, /there is no password: name its file in IMDS_REDIS_PASSWORD_FILE/)
        await host.systemctl('daemon-reload')
        const { Environment } = await host.show('Environment')
        t.match(
          Environment,
          'IMDS_REDIS_PASSWORD_FILE=/run/credentials/imds.service/redis-password',
          'what systemd makes of %d',
        )
        t.notMatch(
          (await ran(host, `IMDS_STORE=redis://127.0.0.1:1 /usr/lib/imds-node/node ${PROGRAMS}/imdsctl.js list`)).text,
          'redis-password',
        )
      },
    )

    await t.test(
      'imdsd --check as root reads credentials as root and all other files as the user of the service',
      async (t) => {
        const good = await node('main', '--check')
        t.equal(good.status, 0, good.text)
        t.match(good.text, 'note: variables from /units/imds.service, ')
        t.match(good.text, /redis-password.conf, \/etc\/imds\/imds.env\n/)
        t.match(good.text, 'note: credential /etc/imds/redis-password, which systemd reads as root')
        t.match(good.text, 'note: files checked as user imds')
        await host.shell('umask 077; echo x > /etc/imds/keys')
        await host.shell(
          'umask 022; echo "IMDS_TOKEN_KEYS_FILE=/etc/imds/keys" > /tmp/other.env; echo "IMDS_STORE=file:/root" >> /tmp/other.env; chmod 700 /root',
        )
        const bad = await node('main', '--check --environment-file /tmp/other.env')
        t.equal(bad.status, 78)
        t.match(bad.text, 'IMDS_TOKEN_KEYS_FILE /etc/imds/keys cannot be read: EACCES')
        t.match(bad.text, 'IMDS_STORE user imds cannot read /root: EACCES')
        t.same(await node('main', '--check --environment-file /none'), {
          status: 66,
          text: 'imds: --environment-file /none cannot be read: ENOENT\n',
        })
        t.match(await node('main', '--environment-file /none'), {
          status: 64,
          text: '--environment-file is for --check',
        })
      },
    )

    await t.test('the daemon starts with the same file', async () => {
      await host.systemctl('start', 'imds')
      await until(
        async () => (await host.shell('cat /log')).includes('"msg":"the store is connected"'),
        'the daemon to connect',
      )
    })
  },
)
