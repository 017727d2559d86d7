/** imds-api as its package installs it: imds-api.service in its sandbox, on a host that systemd boots. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { without } from '../support/packages.ts'
import { bootHost, START_STORES, USE_STORES, withoutSystemd } from '../support/netns/booted-host.ts'
import { until } from '../support/programs/daemon.ts'
import { read } from '../tools/documents.ts'

t.setTimeout(300_000) // as under `npm test`: here are a build and a boot

t.test(
  'imds-api.service serves in its sandbox, survives a kill and a blocked event loop, and stops cleanly',
  { skip: withoutSystemd() || without('postgres', 'redis-server', 'redis-cli') },
  async (t) => {
    const host = await bootHost(t, [])
    const { shell, systemctl } = host
    for (const [name, file] of [
      ['imds-api.env', 'imds-api.env'],
      ['region.yaml', 'region.example.yaml'],
    ] as const)
      await shell(`cat > /etc/imds/${name}`, read(`deploy/${file}`))
    await shell(START_STORES)
    await shell(USE_STORES)
    t.match(
      await shell(`set -e
        (umask 077; openssl rand -hex 16 > /etc/imds/provisioning.secret)
        imds-api apply /etc/imds/region.yaml
        systemctl start imds-api
        curl -s --retry 9 --retry-connrefused 127.0.0.1:9170/readyz`),
      /^\+ zone zon-remk1$[^]*"ready":true/m,
    )
    const isReady = () =>
      until(
        () =>
          shell('curl -fs 127.0.0.1:9170/readyz').then(
            (text) => text.includes('"publishing":"working"'),
            () => false,
          ),
        'imds-api to be ready',
      )
    await isReady()
    const create = async () => {
      const token = /"access_token":"([^"]+)/.exec(
        await shell(
          'curl -fs -u cli-3d0kz:$(cat /etc/imds/provisioning.secret) -d grant_type=client_credentials 127.0.0.1:8170/token',
        ),
      )![1]!
      const answer = await shell(
        `curl -fs -H "Authorization: Bearer ${token}" -H "Content-Type: application/json" -d '{"image": "debian-12"}' 127.0.0.1:8170/1.0/servers`,
      )
      const { id } = JSON.parse(answer) as { id: string }
      await until(
        () => shell(`redis-cli hexists imds:{gb1}:instances ${id}`).then((text) => text.trim() === '1'),
        'the record',
      )
    }
    await create()
    const pid = await shell('systemctl show --property=MainPID --value imds-api')
    await shell(`kill -9 ${pid}`)
    await until(
      async () => (await shell('systemctl show --property=MainPID --value imds-api')) !== pid,
      'systemd to restart imds-api',
    )
    await isReady()
    await create()
    t.same(
      (await shell('systemctl show --property=Type --property=NRestarts --property=WatchdogUSec imds-api'))
        .trim()
        .split('\n')
        .sort(),
      ['NRestarts=1', 'Type=notify', 'WatchdogUSec=30s'],
    )

    await host.dropIn('imds-api.service', '[Service]\nWatchdogSec=5')
    await systemctl('restart', 'imds-api') // Node writes its cache at the end of a process
    t.match(await shell('find /var/cache/imds-api -type f -user imds-api | head -n 1'), '/var/cache/imds-api/')
    t.match(await shell('stat -c "%U %a" /var/cache/imds-api'), 'imds-api 700')
    await sleep(7_000) // longer than WatchdogSec
    t.equal(
      await shell('systemctl show --property=NRestarts --value imds-api'),
      '0\n',
      'imds-api notifies the watchdog',
    )
    const blocked = await shell('systemctl show --property=MainPID --value imds-api')
    await shell(`kill -STOP ${blocked}`) // its event loop is blocked
    await until(
      async () => (await shell('systemctl show --property=NRestarts --value imds-api')) === '1\n',
      'the watchdog to restart imds-api',
      60_000,
    )
    await isReady()
    await create()
    await systemctl('stop', 'imds-api')
    t.match(
      await shell('systemctl show --property=Result --property=ExecMainStatus imds-api'),
      /Result=success\nExecMainStatus=0\n|ExecMainStatus=0\nResult=success\n/,
    )

    await t.test('passwords of PostgreSQL, mail and operators reach the imds-api user as credentials', async (t) => {
      for (const name of ['database-password', 'smtp-password', 'operator-password']) {
        const file = name === 'operator-password' ? `api-${name}` : name // the daemon has one too
        await shell(`umask 077; echo "the ${name}" > /etc/imds/${file}`)
        await shell(`cat > /etc/systemd/system/imds-api.service.d/${name}.conf`, read(`deploy/api-${name}.conf`))
      }
      const files =
        '${IMDS_API_DATABASE_PASSWORD_FILE} ${IMDS_API_SMTP_PASSWORD_FILE} ${IMDS_API_OPERATOR_PASSWORD_FILE}'
      await host.dropIn(
        'imds-api.service',
        `[Service]\nType=oneshot\nRestart=no\nWatchdogSec=0\nStandardOutput=append:/credentials\nExecStart=\nExecStart=/bin/cat ${files}`,
      )
      await systemctl('start', 'imds-api')
      t.equal(await shell('cat /credentials'), 'the database-password\nthe smtp-password\nthe operator-password\n')
    })
  },
)
