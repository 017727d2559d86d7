/**
 * The examples of the documents for publishers, executed as they are against Redis and a daemon: imdsctl in README.md
 * and docs/publishing.md, the record of docs/record.md, and the Python function of docs/encryption.md.
 */
import { spawnSync } from 'node:child_process'
import { renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { must } from '../support/programs/processes.ts'
import { KEY_KINDS, makeIdentity } from '../support/fixtures/identity.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { sha256 } from '../../src/metadata/user-data.ts'
import { startRedis, type TestRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'
import { executed, read } from '../tools/documents.ts'

const without = (command: string, ...args: readonly string[]) =>
  spawnSync(command, args).status !== 0 && `${[command, ...args].join(' ')} does not work here`
const USER_DATA = '#cloud-config\n'
/** A record that 127.0.0.1 may ask for, and that `imdsctl explain 10.0.0.2` finds. */
const aRecord = (change: Record<string, unknown> = {}) =>
  anInstance({
    id: 'srv-x1y2z',
    revision: 3,
    interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:01', ipv4Addresses: ['10.0.0.2/30', '127.0.0.1/8'] }],
    ...change,
  })
const another = (n: number) =>
  aRecord({
    id: `srv-n${n}`,
    interfaces: [{ id: `int-${n}`, macAddress: '02:24:19:00:00:02', ipv4Addresses: [`10.0.1.${n}/24`] }],
  })

interface Region {
  readonly redis: TestRedis
  readonly daemon: TestDaemon
  /** Runs a command in a directory that has the files of the examples. Returns its output. */
  readonly run: (command: string) => Promise<string>
  readonly within: { readonly cwd: string; readonly env: NodeJS.ProcessEnv }
}

/** A region in Redis whose records are encrypted with the key k1, and the daemon of its hypervisor. */
async function aRegion(t: Test): Promise<Region> {
  const cwd = testDirectory(t, {
    'srv-x1y2z.yaml': JSON.stringify(aRecord()),
    'srv-x1y2z.json': JSON.stringify(aRecord({ revision: 20 })),
    'user-data': USER_DATA,
    keys: keyLines('k1'),
    DIRECTORY: {
      'srv-n1.json': JSON.stringify(another(1)),
      'srv-n1.user-data': USER_DATA,
      'srv-n2.yaml': JSON.stringify(another(2)),
    },
    'records.json': JSON.stringify([another(3), another(4)]),
    bin: { imdsctl: `#!/bin/sh\nexec ${process.execPath} ${IMDSCTL} "$@"\n` },
  })
  spawnSync('chmod', ['+x', join(cwd, 'bin/imdsctl')])
  const redis = await startRedis(t)
  const settings = { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_RECORD_KEYS_FILE: join(cwd, 'keys') }
  const daemon = await startDaemon(t, { ...settings, IMDS_HYPERVISOR: 'hv1', IMDS_RESYNC_SECONDS: '1' })
  const environment = programEnvironment()
  const env = {
    ...environment,
    ...settings,
    IMDS_OPERATOR_SOCKET: daemon.operatorSocket.replace('unix:', ''),
    PATH: `${join(cwd, 'bin')}:${environment['PATH']!}`,
  }
  return {
    redis,
    daemon,
    within: { cwd, env },
    run: async (command) => (await must(['sh', '-euc', `cd ${cwd}; ${command}`], { env })).toString(),
  }
}

const commandsOf = (example: string) =>
  example
    .trim()
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'))
    .map((line) => line.split(/ {2,}#/)[0]!.trim())

t.test('the commands of the README publish the record of docs/record.md and explain what its guest gets', async (t) => {
  const { run, daemon, within } = await aRegion(t)
  writeFileSync(
    join(within.cwd, 'srv-x1y2z.yaml'),
    executed('docs/record.md', 'example').replace('10.0.0.2/30', '10.0.0.2/30, 127.0.0.1/8'),
  )
  await run('imdsctl validate srv-x1y2z.yaml')
  t.match(await run(executed('README.md', 'publish')), /10\.0\.0\.2.*200[^]*srv-x1y2z/)
  t.equal((await daemon.get('/latest/user-data')).body.toString(), USER_DATA)
})

t.test('every command of docs/publishing.md works, in their order', async (t) => {
  const { run, daemon, within } = await aRegion(t)
  const { certificateFile } = makeIdentity(KEY_KINDS.ec, within.cwd)
  renameSync(certificateFile, join(within.cwd, 'CERTIFICATE'))
  const served = async () => (await daemon.get('/latest/user-data')).status
  /** What a command prints: one entry for each line of the example. */
  const prints: Readonly<Record<string, RegExp>> = {
    put: /srv-n1|srv-x1y2z|1 |2 /,
    validate: /2 /,
    get: /"id": "srv-x1y2z"/,
    'user-data': /^#cloud-config\n$/,
    list: /^srv-x1y2z {2}3 +hv1 /m,
    export: /^\d records, 0 tombstones: BACKUP$/m,
    import: /^\d records?, \d unchanged$/m,
    republish: /^\d records?, \d unchanged$/m,
    init: /./,
    hypervisors: /^hv1 {2,}/m,
    acl: /^user imds-hv1 on >/,
    drain: /^hv1 is drained: /,
    undrain: /^hv1 is no longer drained$/m,
    evacuate: /^0 instances$/m,
    forget: /^hv9 is not known to the store/,
    wait: /srv-x1y2z/,
    maintenance: /published srv-x1y2z at revision 4$/m,
    reports: /^srv-x1y2z: its guest may not report: /,
    explain: /^10\.0\.0\.2 .*200/,
    schema: /"\$schema"/,
    seal: /srv-x1y2z.* 5/,
    unseal: /srv-x1y2z.* 6/,
    encrypt: /^3 instances, 3 unchanged$/m,
    decrypt: /^3 instances, 3 decrypted$/m,
    jwks: /^DIRECTORY\/.+\n/m,
    firewall: /table inet imds/,
    doctor: /^ok +daemon +it answers, is ready and serves 3 instances$.*^\d+ ok, /ms,
    status: /^imdsd .*, ready$/m,
    remove: /srv-x1y2z.* 7/,
  }
  for (const command of commandsOf(executed('docs/publishing.md', 'imdsctl'))) {
    const [program, name] = command.split(' ') as [string, string]
    t.equal(program, 'imdsctl')
    // this machine lacks units and addresses of a hypervisor
    const accepted = ['doctor', 'status'].includes(name) ? `${command} || [ $? -le 2 ]` : command
    t.match(await run(accepted), prints[name]!, command)
    if (name === 'put') await until(async () => (await served()) === 200, 'the user-data')
    if (name === 'seal') await until(async () => (await served()) === 404, 'the seal')
    if (name === 'unseal') await until(async () => (await served()) === 200, 'the end of the seal')
    if (name === 'remove') await until(async () => (await served()) === 503, 'the removal')
  }
})

t.test(
  'the pipes of imdsctl put --help publish many records and user-data',
  { skip: without('jq', '--version') },
  async (t) => {
    const { run, daemon } = await aRegion(t)
    const commands = (await run('imdsctl put --help')).match(/^ +jq .*/gm)!
    t.equal(commands.length, 2)
    await run(commands[0])
    t.match(await run('imdsctl list'), /^srv-n3 {2}3 .*\nsrv-n4 {2}3 /m)
    await run(commands[1]!)
    await until(async () => (await daemon.get('/latest/user-data')).body.toString() === USER_DATA, 'the user-data')
  },
)

t.test(
  'the Python function of docs/encryption.md encrypts what a daemon serves',
  { skip: without('python3', '-c', 'import cryptography') },
  async (t) => {
    const { redis, daemon } = await aRegion(t)
    const order = Date.now() * 1_000
    const record = aRecord({ order, userData: { size: USER_DATA.length, sha256: sha256(Buffer.from(USER_DATA)) } })
    const [name, key] = keyLines('k1').trim().split(/:(.*)/) as [string, string]
    const encrypted = async (kind: string, text: string) => {
      const call = `encrypt('${name}', base64.b64decode('${key}'), 'gb1', '${kind}', 'srv-x1y2z', 3, sys.stdin.buffer.read())`
      return must(
        [
          'python3',
          '-c',
          `${executed('docs/encryption.md', 'python')}\nimport base64, sys\nsys.stdout.buffer.write(${call})`,
        ],
        { input: text },
      )
    }
    const values = [await encrypted('record', JSON.stringify(record)), await encrypted('user-data', USER_DATA)]
    t.match(
      await redis.client.call(
        'EVAL',
        read('src/store/redis/publish.lua'),
        1,
        'imds:{gb1}',
        'put-encrypted',
        JSON.stringify(record),
        ...values,
      ),
      ['published', '3'],
    )
    await until(async () => (await daemon.get('/latest/user-data')).status === 200, 'the instance')
    t.equal((await daemon.get('/latest/user-data')).body.toString(), USER_DATA)
    t.equal(await daemon.metric('imds_view_faulty_records'), 0)
  },
)
