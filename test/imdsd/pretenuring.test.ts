/** V8's pretenuring, which the daemon turns off at its start (src/imdsd/pretenuring.ts). */
import t from 'tap'
import { run } from '../support/programs/processes.ts'

/** A site of the program that makes arrays which live long. V8 reports it when it considers pretenuring them. */
const PROGRAM = `
const make = () => [1.5, {}, { a: 1 }]
const kept = []
for (let n = 0; n < 2_000_000; n++) kept[n % 300_000] = make()`

/** What V8 says about pretenuring while PROGRAM runs after some other lines. */
async function statisticsOf(before: string): Promise<string> {
  const options = ['--max-semi-space-size=2', '--trace-pretenuring-statistics', '--input-type=module']
  const { status, stdout } = await run([process.execPath, ...options, '-e', before + PROGRAM])
  t.equal(status, 0)
  return stdout.toString()
}

t.test('V8 puts no new object into the old generation once the daemon has turned that off', async (t) => {
  const file = new URL('../../src/imdsd/pretenuring.ts', import.meta.url).href
  t.match(await statisticsOf(''), 'maybe tenure')
  t.equal(await statisticsOf(`import { turnOffPretenuring } from '${file}'\nturnOffPretenuring()`), '')
})
