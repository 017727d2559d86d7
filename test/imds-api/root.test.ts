/** Commands that root runs on a state directory of another user. That user may have put anything into it. */
import { execFileSync } from 'node:child_process'
import { chownSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { writeRegion } from '../support/programs/api.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { run } from '../support/programs/processes.ts'
import { shortDirectory } from '../support/test-directory.ts'

t.setTimeout(300_000) // as under `npm test`

/** The user of the service. */
const NOBODY = 65_534
const STATES = process.env['IMDS_TEST_STATES']
const needsRoot = { skip: process.getuid?.() === 0 ? false : 'needs root' }

/** A state directory of the service's user, and files of root beside it that only root may read. */
function aState(t: Test) {
  const directory = shortDirectory(t, 0o711)
  const [state, own, store] = ['state', 'root', 'store'].map((name) => join(directory, name)) as [
    string,
    string,
    string,
  ]
  mkdirSync(state)
  mkdirSync(own, { mode: 0o700 })
  const file = join(own, 'file')
  writeFileSync(file, 'private', { mode: 0o600 })
  const env = {
    ...programEnvironment(),
    IMDS_STORE: `file:${store}`,
    IMDS_API_DATABASE: 'embedded',
    IMDS_API_STATE_DIR: state,
    IMDS_API_LISTEN: '127.0.0.1:0',
    IMDS_API_OPERATOR_LISTEN: '127.0.0.1:0',
  }
  return {
    state,
    own,
    file,
    /** Puts what the service's user has prepared into the state directory, all of it that user's. */
    prepare: (from: string | undefined) => {
      if (from !== undefined) execFileSync('cp', ['-a', `${from}/.`, state])
      execFileSync('chown', ['-hR', `${NOBODY}:${NOBODY}`, state])
    },
    region: writeRegion(own),
    imdsApi: async (...args: string[]) => {
      // Without tap's hook, which writes a file at the end: the program may have become another user by then.
      const { status, stdout, stderr } = await run(
        ['env', '--unset=NODE_OPTIONS', process.execPath, IMDS_API, ...args],
        { env },
      )
      return { status, stdout: stdout.toString(), stderr }
    },
    /** Tests that root's files are as they were. */
    isUntouched: (t: Test) => {
      t.match(statSync(own), { uid: 0, gid: 0 })
      t.match(statSync(file), { uid: 0, gid: 0, mode: 0o100600 })
      t.equal(readFileSync(file, 'utf8'), 'private')
    },
  }
}

t.test(
  'root applies a region file as the owner of the state directory, and no link there leads it away',
  needsRoot,
  async (t) => {
    const { state, file, prepare, region, imdsApi, isUntouched } = aState(t)
    prepare(STATES && join(STATES, 'tables'))
    mkdirSync(join(state, 'postgres'), { recursive: true, mode: 0o700 })
    rmSync(join(state, 'postgres/log'), { force: true })
    symlinkSync(file, join(state, 'postgres/log'))
    prepare(undefined)
    t.match(
      await imdsApi('apply', region),
      { status: 0, stdout: /^\+ region gb1$/m, stderr: '' },
      'the files of the region are readable by root only',
    )
    isUntouched(t)
    for (const name of readdirSync(state, { recursive: true, encoding: 'utf8' }))
      if (statSync(join(state, name)).uid !== NOBODY) t.fail(`${name} belongs to another user`)
    t.match(await imdsApi('--check'), { status: 0, stdout: 'the tables are those of this version\n', stderr: '' })
  },
)

t.test('a link in place of the directory of PostgreSQL gives its user nothing of root', needsRoot, async (t) => {
  const { state, own, prepare, region, imdsApi, isUntouched } = aState(t)
  symlinkSync(own, join(state, 'postgres'))
  prepare(undefined)
  t.match(await imdsApi('apply', region), { status: 1, stdout: '' })
  isUntouched(t)
})

t.test(
  'root does not serve from a state directory of another user, and the log names the remedy',
  needsRoot,
  async (t) => {
    const { state, prepare, imdsApi } = aState(t)
    prepare(undefined)
    t.match(await imdsApi(), {
      status: 1,
      stdout: new RegExp(
        `${state} belongs to the user with the id 65534: run imds-api as that user, not as root .systemctl start imds-api, or setpriv --reuid=65534`,
      ),
    })
    t.strictSame(readdirSync(state), [])
  },
)

t.test(
  'a state directory of the group root is refused: the group would be that of PostgreSQL',
  needsRoot,
  async (t) => {
    const { state, region, imdsApi } = aState(t)
    chownSync(state, NOBODY, 0)
    t.match(await imdsApi('apply', region), {
      status: 1,
      stderr: `imds-api: ${state} belongs to the group root: give it the group of its owner (chgrp GROUP ${state})\n`,
    })
  },
)
