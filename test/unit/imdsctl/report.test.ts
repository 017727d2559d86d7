import { expect, test } from 'vitest'
import { MAX_IN_FLIGHT } from '../../../src/imdsctl/commands.ts'
import { CommandReport } from '../../../src/imdsctl/report.ts'
import { CommandFailure, EXIT } from '../../../src/runtime/exit-status.ts'
import { StoreUnavailable } from '../../../src/store/publisher.ts'
import { runCommand } from '../../support/programs/collected-output.ts'

/** Reports what a change does to some instances. */
const reporting = (ids: readonly number[], change: (id: number) => Error | string) =>
  runCommand(async (output) => {
    const report = new CommandReport(output, 'instance', 'each')
    await report.addEach(ids, async (id) => {
      const result = change(id)
      if (result instanceof Error) throw result
      return Promise.resolve({ text: `${result} ${id}`, json: { result } })
    })
    return report.end()
  }, false)
const STOPPED = 'imdsctl: stopped: the store cannot be used, and the remaining instances were not tried\n'

test('once the store is lost, nothing more is tried, and the report says so if something is left', async () => {
  const ids = Array.from({ length: MAX_IN_FLIGHT + 8 }, (_, i) => i)
  const lost = () => new StoreUnavailable('gone')
  expect(await reporting(ids, lost)).toEqual({
    status: EXIT.unavailable,
    stdout: `${MAX_IN_FLIGHT} instances, ${MAX_IN_FLIGHT} failed\n`,
    stderr: 'imdsctl: gone\n'.repeat(MAX_IN_FLIGHT) + STOPPED,
  })
  expect(await reporting([1], lost)).toEqual({ status: EXIT.unavailable, stdout: '', stderr: 'imdsctl: gone\n' })
})

test('after any other failure it continues, and the exit status is the highest', async () => {
  const statuses = [EXIT.refused, EXIT.notFound, EXIT.badData]
  const change = (id: number) => (statuses[id] === undefined ? 'sealed' : new CommandFailure(statuses[id], 'no'))
  expect(await reporting([0, 1, 2, 3], change)).toEqual({
    status: EXIT.badData,
    stdout: 'sealed 3\n4 instances, 1 refused, 1 failed, 1 faulty, 1 sealed\n',
    stderr: 'imdsctl: no\n'.repeat(3),
  })
})
