/**
 * A process that runs test files of tap one after the other, as tap-files.ts asks: what they import is loaded once.
 *
 * A file imports `tap` as if it ran alone: the `t` that it gets is new for each file, and ends when the tests of the file
 * have ended. Then nothing of the file may keep the process running: no timer, no socket, no child process.
 */
import { registerHooks } from 'node:module'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { setTimeout as sleep } from 'node:timers/promises'
import { Test } from 'tap'

/** How a file ended. Tests in other tests are part of them. `left`: the resources of Node that it left. */
export interface FileReport {
  readonly kind: 'end'
  readonly passed: number
  readonly skipped: readonly string[]
  readonly failures: readonly string[]
  readonly left: readonly string[]
}

/** A test that takes longer fails, unless its file sets another time. */
const TEST_MS = 300_000
/** How long timers and sockets may take to end after the file. A file that runs alone waits for them too. */
const END_MS = 20_000

/** The `t` of the file that runs. Each file imports it from here. */
export let current: ReturnType<typeof buildTest>

const buildTest = (file: string) =>
  new Test({ name: file, timeout: TEST_MS, cb: () => import(pathToFileURL(resolve(file)).href) })

registerHooks({
  resolve: (specifier, context, next) =>
    specifier === 'tap' && context.parentURL?.endsWith('.test.ts') === true
      ? { url: `tap-of:${context.parentURL}`, format: 'module', shortCircuit: true }
      : next(specifier, context),
  load: (url, context, next) =>
    url.startsWith('tap-of:')
      ? {
          format: 'module',
          source: `import { current } from ${JSON.stringify(import.meta.url)}\nexport default current`,
          shortCircuit: true,
        }
      : next(url, context),
})

process.on('message', (file: string) => void runFile(file))

async function runFile(file: string): Promise<void> {
  const before = process.getActiveResourcesInfo()
  const { promise: ended, resolve: end } = Promise.withResolvers<unknown>()
  const test = (current = buildTest(file))
  test.testdirName = resolve('.tap/fixtures', file.replaceAll('/', '-')) // as of a file that runs alone
  test.once('end', end).resume()
  test.runMain(() => {
    // `end` has the end
  })
  await ended
  test.setTimeout(0) // its timer would fire while another file runs
  const report: FileReport = {
    kind: 'end',
    passed: test.results?.pass ?? 0,
    skipped: (test.results?.skips ?? []).map(({ name, skip }) => `${name}: ${String(skip)}`),
    failures: test.lists.fail.map(({ fullname, diag }) => `${fullname}\n${format((diag ?? {}) as object)}`),
    left: await resourcesLeft(before),
  }
  process.send!(report)
}

function format(details: object): string {
  return Object.entries(details)
    .map(
      ([name, value]: [string, unknown]) => `  ${name}: ${typeof value === 'string' ? value : JSON.stringify(value)}`,
    )
    .join('\n')
}

/** The resources that keep the process running and that were not there before. Waits until there are none, for a while. */
async function resourcesLeft(before: readonly string[]): Promise<readonly string[]> {
  for (const startedMs = performance.now(); ;) {
    const left = process.getActiveResourcesInfo()
    for (const name of before) if (left.includes(name)) left.splice(left.indexOf(name), 1)
    if (left.length === 0 || performance.now() - startedMs > END_MS) return left
    await sleep(50, undefined, { ref: false })
  }
}
