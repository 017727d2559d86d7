/**
 * The level of the daemon's log, changed while it runs.
 */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { executed } from '../tools/documents.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { run } from '../support/programs/processes.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { testDirectory } from '../support/test-directory.ts'

t.setTimeout(120_000)

t.test('imdsctl log-level shows requests for some time; the configured level is back by itself', async (t) => {
  const daemon = await startDaemon(t, { IMDS_STORE: `file:${testDirectory(t)}` })
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'readiness')
  const imdsctl = async (args: readonly string[], operator = daemon.operatorSocket) => {
    const { status, stdout, stderr } = await run([process.execPath, IMDSCTL, ...args, '--operator', operator], {
      env: programEnvironment(),
    })
    return { status, text: stdout.toString(), stderr }
  }
  const requests = () => daemon.log.filter(({ level, msg }) => level === 'debug' && msg === 'request').length

  t.match(await imdsctl(['log-level']), { status: 0, text: 'info\n' })
  await daemon.get('/latest/meta-data/')
  t.equal(requests(), 0)
  t.match(await imdsctl(['log-level', 'debug', '--for', '1h']), { status: 0, text: 'debug for 1 h more, then info\n' })
  await daemon.get('/latest/meta-data/')
  await until(() => requests() === 1, 'the line of the request')
  t.match((await imdsctl(['status'])).text, /^log +debug for (1 h|59 min) more, then info$/m, 'status shows it')
  t.match(JSON.parse((await imdsctl(['--json', 'log-level'])).text), {
    level: 'debug',
    configured: 'info',
    until: /^2/,
  })
  t.match(await imdsctl(['log-level', 'info']), { text: 'info\n' }, 'the configured level ends it')
  await daemon.get('/latest/meta-data/')
  t.match(await imdsctl(['log-level', 'debug', '--for', '1s']), { status: 0 })
  await until(() => daemon.log.at(-1)?.msg === 'the log has its configured level again', 'the end of the time')
  await daemon.get('/latest/meta-data/')
  t.equal(requests(), 1)

  t.match(
    await imdsctl(['log-level', 'debug'], `127.0.0.1:${String(daemon.operatorPort)}`),
    { status: 64, stderr: /is on the daemon's unix socket only/ },
    'nobody changes it over TCP',
  )
})

t.test('the commands of docs/operations/tools.md change the level of the log', async (t) => {
  const daemon = await startDaemon(t, { IMDS_STORE: `file:${testDirectory(t)}` })
  const functions = [
    `imdsctl() { ${process.execPath} ${IMDSCTL} "$@"; }`,
    `systemctl() { kill -USR1 ${String(daemon.process.pid)}; }`,
  ]
  const { stdout, stderr } = await run(
    ['sh', '-euc', `${functions.join('; ')}; ${executed('docs/operations/tools.md', 'log level')}`],
    { env: { ...programEnvironment(), IMDS_OPERATOR_SOCKET: daemon.operatorSocket.replace('unix:', '') } },
  )
  t.equal(stderr, '')
  t.match(stdout.toString(), /^(debug for (10|9) min more, then info\n){2}info\n$/)
  const levels = () => daemon.log.flatMap(({ logLevel }) => (logLevel === undefined ? [] : [logLevel]))
  await until(() => levels().length === 3, 'the changes')
  t.same(levels(), ['debug', 'info', 'debug'])
})

t.test('SIGUSR1 shows requests for 10 minutes without a debugger, and SIGHUP stops in order', async (t) => {
  const directory = testDirectory(t, { store: {} })
  const stderr = join(directory, 'stderr')
  const daemon = await startDaemon(t, { IMDS_STORE: `file:${join(directory, 'store')}` }, [
    'sh',
    '-c',
    `exec "$@" 2> ${stderr}`,
    'sh',
  ])
  daemon.process.kill('SIGUSR1')
  await until(() => daemon.log.some(({ msg }) => msg === 'an operator changed the level of the log'), 'the change')
  await daemon.get('/latest/meta-data/')
  await until(() => daemon.log.some(({ msg }) => msg === 'request'), 'the line of the request')
  t.equal(readFileSync(stderr, 'utf8'), '', 'Node.js would print where its debugger listens')
  daemon.process.kill('SIGHUP')
  await once(daemon.process, 'exit')
  t.equal(daemon.process.exitCode, 0)
})
