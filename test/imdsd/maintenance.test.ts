/** H8: the commands of docs/operations/jobs.md announce maintenance, and the guest sees it. */
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { runExample } from '../support/programs/example.ts'
import { IMDSCTL } from '../support/programs/imds.ts'
import { testDirectory } from '../support/test-directory.ts'
import { executed } from '../tools/documents.ts'

const ID = 'srv-x1y2z'
const GUEST = '127.0.0.2'

t.test('H8: imdsctl announces maintenance, and ends that, and the guest reads both', async (t) => {
  const url = `file:${testDirectory(t)}`
  const store = await openStore({ url })
  const nic = { id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`${GUEST}/8`] }
  await store.put(anInstance({ id: ID, interfaces: [nic] }))
  const daemon = await startDaemon(t, { IMDS_STORE: url })
  const read = async (name: string) =>
    (await daemon.get(`/latest/meta-data/events/maintenance/${name}`, GUEST)).body.toString()
  const imdsctl = [process.execPath, IMDSCTL, '--store', url]
  const lines = executed('docs/operations/jobs.md', 'maintenance').trim().split('\n')
  const runLine = (line: string) => runExample(t, line, { commands: { imdsctl } })

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
