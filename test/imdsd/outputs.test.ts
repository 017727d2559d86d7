/**
 * Commands whose output cannot be written: standard output is a full disk (/dev/full), or a pipe that its reader has
 * closed.
 */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { openStore } from '../../src/store/open.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { run } from '../support/programs/processes.ts'
import { IMDS_API, IMDSCTL, IMDSD, programEnvironment } from '../support/programs/imds.ts'
import { testDirectory } from '../support/test-directory.ts'

const RECORDS = 20

/** Waits until the reader of the pipe at standard output has closed it. */
const UNTIL_CLOSED = 'trap "" PIPE; while echo; do :; done 2> /dev/null; exec'

/** Runs a pipeline with the programs as $IMDSCTL, $IMDSD and $IMDS_API. `status` is that of its first command. */
async function shell(command: string, env: Record<string, string> = {}) {
  const program = (path: string) => `${process.execPath} ${path}`
  const programs = { IMDSCTL: program(IMDSCTL), IMDSD: program(IMDSD), IMDS_API: program(IMDS_API) }
  const { stdout, stderr } = await run(['bash', '--norc', '-c', `${command}; echo "status $PIPESTATUS"`], {
    env: { ...programEnvironment(), ...programs, ...env },
  })
  const [, printed = '', status] = /^([^]*)status (\d+)\n$/.exec(stdout.toString())!
  return { status: Number(status), printed, stderr }
}

/** A directory with records, and an empty file store. */
function records(t: Test) {
  const directory = testDirectory(t, { records: {}, store: {} })
  for (let n = 0; n < RECORDS; n++) {
    const interfaces = [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`10.0.0.${n + 1}/24`] }]
    writeFileSync(
      join(directory, 'records', `srv-n${n}.json`),
      JSON.stringify(anInstance({ id: `srv-n${n}`, interfaces })),
    )
  }
  const env = { IMDS_STORE: `file:${directory}/store`, IMDS_STATE_DIR: directory, RECORDS: join(directory, 'records') }
  const published = async () => (await (await openStore({ url: env.IMDS_STORE })).list()).length
  return { env, published, directory }
}

t.test('put publishes every record, says so, and exits with 74 if its output is lost', async (t) => {
  const full = 'ENOSPC: no space left on device, write'
  for (const [where, loss, listed] of [
    ['> /dev/full', full, 74],
    ['2> /dev/full > /dev/full', undefined, 74],
    ['| :', 'write EPIPE', 0],
  ] as const) {
    await t.test(where, async (t) => {
      const { env, published } = records(t)
      const imdsctl = where.startsWith('|') ? `{ ${UNTIL_CLOSED} $IMDSCTL` : '{ $IMDSCTL'
      const { status, stderr } = await shell(`${imdsctl} put $RECORDS; } ${where}`, env)
      t.same([status, await published()], [74, RECORDS])
      t.equal(
        stderr,
        loss === undefined ? '' : `imdsctl: output was lost: ${loss}; its last line was: 20 records, 20 published\n`,
      )
      t.equal((await shell(`${imdsctl} list; } ${where}`, env)).status, listed)
    })
  }
})

t.test('every other command that changes something does so, and a refusal keeps its exit status', async (t) => {
  const { env, published, directory } = records(t)
  await shell('$IMDSCTL put $RECORDS', env)
  const userData = join(directory, 'user-data')
  writeFileSync(userData, 'x')
  for (const command of ['seal srv-n0', 'unseal srv-n0', 'remove srv-n0', 'init', `validate ${env.RECORDS}`]) {
    t.match(
      await shell(`$IMDSCTL ${command} > /dev/full`, env),
      { status: 74, stderr: /^imdsctl: output was lost: ENOSPC: .*; its last line was: / },
      command,
    )
  }
  t.equal(await published(), RECORDS - 1)
  t.match(await shell('$IMDSCTL seal srv-n0 > /dev/full', env), {
    status: 1,
    stderr: /^imdsctl: the store has no srv-n0/,
  })
  mkdirSync(join(directory, 'faulty'))
  writeFileSync(join(directory, 'faulty/a.json'), '{}')
  t.match(await shell('$IMDSCTL validate $RECORDS $RECORDS/../faulty > /dev/full', env), { status: 65 })
})

t.test('a command that only prints ends quietly with its reader, and with 74 on a full disk', async (t) => {
  const { env } = records(t)
  await shell('$IMDSCTL put $RECORDS', env)
  for (const command of ['$IMDSCTL --json list', '$IMDSD --help', '$IMDS_API --version']) {
    t.same(await shell(`{ ${UNTIL_CLOSED} ${command}; } | :`, env), { status: 0, printed: '', stderr: '' }, command)
    t.match(
      await shell(`${command} > /dev/full`, env),
      { status: 74, stderr: /^imds(ctl|-api)?: output was lost: ENOSPC: no space left on device, write\n$/ },
      command,
    )
  }
})
