/** The level of the daemon's log, changed while it runs. */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { executed } from '../tools/documents.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { run } from '../support/programs/processes.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'
import { testDirectory } from '../support/test-directory.ts'

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
  t.match(
    await imdsctl(['log-level', 'debug', '--operator', `127.0.0.1:${daemon.operatorPort}`]),
    { status: 64, stderr: /is on the daemon's unix socket only/ },
    'nobody changes it over TCP',
  )
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
