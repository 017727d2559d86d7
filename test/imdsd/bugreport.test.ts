/** `imdsctl bugreport`: what it has, and that a canary in every place that has a secret is not in it. */
import { randomBytes } from 'node:crypto'
import { chmodSync, mkdtempSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { must, run } from '../support/programs/processes.ts'
import { startRedis } from '../support/redis/redis.ts'
import { shortDirectory } from '../support/test-directory.ts'

t.test('a bug report has what is known of the daemon, and no secret from any place that has one', async (t) => {
  const directory = shortDirectory(t)
  const canary = (place: string) => `canary-${place}-${randomBytes(6).toString('hex')}`
  const userData = canary('user-data')
  const password = canary('password')
  const inUrl = canary('url')
  const inEnvironment = canary('environment')
  const inLog = { password: canary('log-password'), token: canary('log-token'), key: canary('log-key') }
  const file = (name: string, text: string) => {
    writeFileSync(join(directory, name), text, { mode: 0o600 })
    return join(directory, name)
  }

  const redis = await startRedis(t)
  await redis.client.config('SET', 'requirepass', password)
  const recordKeys = keyLines('k1', 'k2')
  const tokenKey = randomBytes(32).toString('base64')
  const settings = {
    IMDS_STORE: redis.url,
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_REDIS_PASSWORD_FILE: file('password', `${password}\n`),
    IMDS_RECORD_KEYS_FILE: file('record-keys', recordKeys),
    IMDS_TOKEN_KEYS_FILE: file('token-keys', `${tokenKey}\n`),
  }
  const store = await openStore({
    url: redis.url,
    region: 'gb1',
    passwordFile: settings.IMDS_REDIS_PASSWORD_FILE,
    recordKeysFile: settings.IMDS_RECORD_KEYS_FILE,
  })
  const interfaces = [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['127.0.0.1/8'] }]
  await store.put(anInstance({ interfaces }), Buffer.from(userData))
  await store.close()
  const daemon = await startDaemon(t, settings)
  await until(async () => (await daemon.get('/latest/user-data')).body.toString() === userData, 'the user-data')
  const token = await fetch(`http://127.0.0.1:${daemon.guestPort}/latest/api/token`, {
    method: 'PUT',
    headers: { 'x-aws-ec2-metadata-token-ttl-seconds': '60' },
  }).then((response) => response.text())
  t.ok(token.length > 20)

  // The journal and the units of a host without systemd: another program could print any of these there.
  const digits = Buffer.from(tokenKey, 'base64')
  const leaks = [
    `journal of imds`,
    `x-aws-ec2-metadata-token: ${token}`,
    `password is ${password}, in a URL ${encodeURIComponent(password)}, in base64 ${Buffer.from(password).toString('base64')}`,
    `token key ${tokenKey} ${digits.toString('hex')} ${digits.toString('base64url')}`,
    `record keys ${recordKeys.replaceAll('\n', ' ')}`,
    `connecting to redis://imds:${inLog.password}@redis.example.com`,
    `{"headers":{"authorization":"Bearer ${inLog.token}","cookie":"session=${inLog.token}"},"secret":"${inLog.token}"}`,
    `-----BEGIN PRIVATE KEY-----\n${inLog.key}\n-----END PRIVATE KEY-----`,
  ]
  const bin = mkdtempSync(join(directory, 'bin-'))
  writeFileSync(join(bin, 'journalctl'), `#!/bin/sh\ncat <<'END'\n${leaks.join('\n')}\nEND\n`)
  chmodSync(join(bin, 'journalctl'), 0o755)
  // too short to be removed wherever it occurs
  const short = 'pin42'
  const units = [
    '# /etc/systemd/system/imds-firewall.service.d/local.conf',
    `# Environment=COMMENTED=${short}`,
    '[Service]',
    `Environment=IMDS_REGION=gb1 PIN=${short}`,
    `ExecStart=/usr/bin/env PIN=${short} ${join(bin, 'node')}`,
    `SetCredential=pin:${short}`,
    'User=imds',
  ]
  writeFileSync(join(bin, 'systemctl'), `#!/bin/sh\ncat <<'END'\n${units.join('\n')}\nEND\n`)
  chmodSync(join(bin, 'systemctl'), 0o755)
  const environmentFile = file(
    'imds.env',
    [
      ...Object.entries(settings).map(([name, value]) => `${name}=${value}`),
      `IMDS_PASSWORD=${inEnvironment}`,
      `OTHER="${inEnvironment}"`,
      `PIN=${short}`,
      `IMDS_STATE_DIR=${daemon.directory}`,
    ].join('\n'),
  )
  const own = programEnvironment()
  const bugreport = (args: readonly string[], env: NodeJS.ProcessEnv = {}) =>
    run([process.execPath, IMDSCTL, '--environment-file', environmentFile, 'bugreport', ...args], {
      env: {
        ...own,
        PATH: `${bin}:${String(own['PATH'])}`,
        IMDS_OPERATOR_SOCKET: daemon.operatorSocket.slice(5),
        ...env,
      },
    })
  const secrets = [
    short,
    ...[userData, password, inUrl, inEnvironment, token, tokenKey, ...Object.values(inLog)],
    ...recordKeys.split(/[\s:]+/).filter((text) => text.length > 20),
  ]
  const path = join(directory, 'report.txt')
  for (const env of [{}, { IMDS_STORE: `redis://imds:${inUrl}@127.0.0.1:${redis.port}` }]) {
    const { status, stdout, stderr } = await bugreport([path], env)
    t.equal(status, 0, stderr)
    t.match(stdout.toString(), /^wrote .*report\.txt: read it before you send it/)
    t.equal(statSync(path).mode & 0o777, 0o600)
    const report = readFileSync(path, 'utf8')
    for (const text of [
      /^===== doctor\n(warning|failure) +configuration/m,
      /^===== readyz\n\{\n {2}"ready": true/m,
      /^imds_view_instances 1$/m,
      /^IMDS_HYPERVISOR=hv1$/m,
      /^IMDS_PASSWORD=\[removed\]$/m,
      /^OTHER=\[removed\]$/m,
      /^journal of imds$/m,
      /^Environment=IMDS_REGION=gb1 \[removed\]\nExecStart=.*\n\[removed\]\nUser=imds$/m,
      /^===== \$ ss -Hltnp\n.*LISTEN/m,
    ])
      t.match(report, text)
    for (const secret of secrets)
      for (const encoding of ['utf8', 'base64', 'base64url', 'hex'] as const) {
        const text = Buffer.from(secret).toString(encoding).replace(/=+$/, '')
        t.notOk(report.includes(text), `${secret} as ${encoding}`)
      }
    t.match(await bugreport([path], env), { status: 66, stderr: /report\.txt cannot be written: EEXIST/ })
    rmSync(path)
  }
  t.match((await bugreport(['-'])).stdout.toString(), /^===== report\nimdsctl .*===== metrics\n/s)
})

t.test('a file that another user has replaced does not hold up or blind the report of root', async (t) => {
  const directory = shortDirectory(t)
  const path = (name: string) => join(directory, name)
  writeFileSync(path('elsewhere'), 'a file of root\n')
  await must(['mkfifo', path('token-keys')])
  const own = programEnvironment()
  const env = { ...own, IMDS_STORE: `file:${directory}`, IMDS_STATE_DIR: directory }
  const pipe = () => must(['mkfifo', path('token-key')])
  for (const [what, replace, keys] of [
    ['a FIFO', pipe, undefined],
    ['a link to an endless file', () => symlinkSync('/dev/zero', path('token-key')), undefined],
    ['a link to another file', () => symlinkSync('elsewhere', path('token-key')), undefined],
    ['a FIFO that a variable names', () => undefined, path('token-keys')],
  ] as const) {
    await replace()
    writeFileSync(path('view.snapshot'), 'no snapshot')
    const { status, stdout, stderr } = await run(['timeout', '20', process.execPath, IMDSCTL, 'bugreport', '-'], {
      env: { ...env, ...(keys !== undefined && { IMDS_TOKEN_KEYS_FILE: keys }) },
    })
    t.equal(status, 0, `${what}: ${stderr}`)
    t.match(stdout.toString(), /^===== doctor\n/m, what)
    t.match(stdout.toString(), /is a (FIFO|symbolic link), not a regular file/, what)
    rmSync(path('token-key'), { force: true })
  }
})
