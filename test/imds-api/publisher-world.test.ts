/** The publishers' world (test/world/publisher.ts), as `npm run world -- --publisher` runs it. */
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { run } from '../support/programs/processes.ts'
import { newSeeds } from '../tools/new-seeds.ts'

/** New seeds, which follow from the code (tools/new-seeds.ts). */
const SEEDS = 6
const WORLD = fileURLToPath(new URL('../world/main.ts', import.meta.url))
const TIMEOUT_SECONDS = 280

t.test('two publishers keep their promises in known and new orders of statements, kills and faults', async (t) => {
  const world = ['timeout', String(TIMEOUT_SECONDS), process.execPath, WORLD, '--publisher', ...newSeeds(SEEDS)]
  const { status, stdout, stderr } = await run(world)
  t.equal(status, 0, `${stdout.toString()}${stderr}`)
})
