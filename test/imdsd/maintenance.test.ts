/** H8: the commands of docs/operations/jobs.md announce maintenance, and the guest sees it. */
import t from 'tap'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { until } from '../support/programs/daemon.ts'
import { runExample } from '../support/programs/example.ts'
import { imdsctlCommand } from '../support/programs/imdsctl.ts'
import { startServing } from '../support/programs/served.ts'
import { executed } from '../tools/documents.ts'

const ID = 'srv-x1y2z'
const GUEST = '127.0.0.2'

t.test('H8: imdsctl announces maintenance, and ends that, and the guest reads both', async (t) => {
  const { daemon, url } = await startServing(t, (store) => store.put(anInstance({ id: ID, interfaces: loopback(2) })))
  const read = async (name: string) =>
    (await daemon.get(`/latest/meta-data/events/maintenance/${name}`, GUEST)).body.toString()
  const imdsctl = imdsctlCommand('--store', url)
  const lines = executed('docs/operations/jobs.md', 'maintenance').trim().split('\n')
  const runLine = (line: string) => runExample(t, line, { imdsctl })

  t.match(await runLine(lines[0]!), { status: 0 })
  await until(async () => (await read('scheduled')).includes('evt-1'), 'the event to be scheduled')
  t.match(JSON.parse(await read('scheduled')), [
    { Code: 'system-reboot', EventId: 'evt-1', NotBefore: '20 Nov 2026 15:04:05 GMT', State: 'active' },
  ])
  t.match((await runLine(lines[1]!)).stdout.toString(), /^EVENT .*\nevt-1 +system-reboot +active /)
  t.match(await runLine(lines[2]!), { status: 0 })
  await until(async () => (await read('history')).includes('evt-1'), 'the event to be history')
  t.match(JSON.parse(await read('history')), [{ Description: '[Completed] system-reboot', State: 'completed' }])
  t.equal(await read('scheduled'), '[]')
})
