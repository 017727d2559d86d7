/**
 * Redis by the commands of docs/install.md, with the unit and the configuration of Debian's package, on a host that systemd
 * boots: its users may do what they need, nobody else may anything, and a restart keeps all.
 */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { bootBareHost, LINK, withoutSystemd } from '../support/netns/booted-host.ts'
import { without } from '../support/packages.ts'
import { until } from '../support/programs/daemon.ts'
import { anAuthority } from '../support/redis/tls.ts'
import { shortDirectory } from '../support/test-directory.ts'
import { executed, read } from '../tools/documents.ts'

const UNIT = '/usr/lib/systemd/system/redis-server.service'

t.test(
  'Redis is set up by the documented commands',
  { skip: withoutSystemd() || without('redis-server') },
  async (t) => {
    const { shell } = await bootBareHost(t, [LINK])
    const directory = shortDirectory(t)
    const authority = await anAuthority(directory, 'ours')
    const { certFile, keyFile } = await authority.issue('redis')
    for (const [name, path] of Object.entries({
      'redis.crt': certFile,
      'redis.key': keyFile,
      'redis-ca.crt': authority.caFile,
    }))
      await shell(`cat > /tmp/${name}`, readFileSync(path, 'utf8'))
    await shell('cat > /tmp/redis.acl', read('deploy/redis.acl'))
    await shell('cat > /etc/systemd/system/redis-server.service && systemctl daemon-reload', readFileSync(UNIT, 'utf8'))
    await shell(`set -e; cd /tmp\n${executed('docs/install.md', 'redis').replace(/^apt-get install.*/, '')}`)

    const users = await shell('cat /etc/redis/users.acl')
    const passwordOf = (user: string) => new RegExp(`^user ${user} on >(\\S{48}) `, 'm').exec(users)![1]!
    const cli = (user: string, command: string) =>
      shell(
        `${user === '' ? '' : `REDISCLI_AUTH=${passwordOf(user)} `}redis-cli -u rediss://127.0.0.1:6379 --cacert /etc/redis/redis-ca.crt ` +
          `${user === '' ? '' : `--user ${user} `}${command} 2>&1`,
      )
    await until(async () => (await cli('admin', 'PING')) === 'PONG\n', 'Redis to answer')
    t.match(await cli('', 'PING'), /NOAUTH/)
    t.match(await cli('imds-hv1', 'SET x y'), /NOPERM/)
    // as a publish does, a script writes several keys, which are one transaction in the append-only file
    const writes = "redis.call('SET', KEYS[1]..':a', 1); redis.call('SET', KEYS[1]..':b', 1)"
    await cli('imds-publisher', `EVAL "${writes}" 1 'imds:{gb1}'`)
    const keysIn = async () => (await cli('admin', 'KEYS "*"')).split('\n').sort().join('\n')
    const keys = await keysIn()
    t.match(keys, 'imds:{gb1}:a')
    t.equal(await cli('admin', 'ACL SAVE'), 'OK\n', 'the sandbox of the unit allows it')
    await shell('systemctl restart redis-server')
    await until(async () => (await cli('admin', 'PING')) === 'PONG\n', 'Redis to answer again')
    t.equal(await keysIn(), keys, 'a restart keeps what a script has written')
    t.notMatch(await shell('cat /etc/redis/users.acl'), passwordOf('admin'), 'passwords are hashes now')
  },
)
