/** The signals that imdsd takes besides those of every stop. */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { startDaemon } from '../support/programs/daemon.ts'
import { testDirectory } from '../support/test-directory.ts'

t.test('SIGUSR1 opens no debugger and ends nothing, and SIGHUP stops in order', async (t) => {
  const directory = testDirectory(t, { store: {} })
  const stderr = join(directory, 'stderr')
  const daemon = await startDaemon(t, { IMDS_STORE: `file:${join(directory, 'store')}` }, [
    'sh',
    '-c',
    `exec "$@" 2> ${stderr}`,
    'sh',
  ])
  daemon.process.kill('SIGUSR1')
  await daemon.get('/latest/meta-data/')
  t.equal(readFileSync(stderr, 'utf8'), '', 'Node.js would print where its debugger listens')
  daemon.process.kill('SIGHUP')
  await once(daemon.process, 'exit')
  t.equal(daemon.process.exitCode, 0)
})
