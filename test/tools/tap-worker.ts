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

/** A file to run. A test that takes longer than the time limit fails. */
export interface FileToRun {
  readonly file: string
  readonly timeoutMs: number
}

/** A part of a file's output; or its end, with the resources of Node that it left. */
export type FileReport =
  | { readonly kind: 'output'; readonly tap: string }
  | { readonly kind: 'end'; readonly left: readonly string[] }

/** How long timers and sockets may take to end after the file. A file that runs alone waits for them too. */
const END_MS = 20_000

/** The `t` of the file that runs. Each file imports it from here. */
export let current: ReturnType<typeof buildTest>

const buildTest = (file: string, timeout: number) =>
  new Test({ name: file, timeout, cb: () => import(pathToFileURL(resolve(file)).href) })

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

process.on('message', ({ file, timeoutMs }: FileToRun) => void runFile(file, timeoutMs))

async function runFile(file: string, timeoutMs: number): Promise<void> {
  const before = process.getActiveResourcesInfo()
  const { promise: ended, resolve: end } = Promise.withResolvers<unknown>()
  current = buildTest(file, timeoutMs)
  current.testdirName = resolve('.tap/fixtures', file.replaceAll('/', '-')) // as of a file that runs alone
  current.on('data', (tap: string) => report({ kind: 'output', tap }))
  current.once('end', end)
  current.runMain(() => {
    // `end` has the end
  })
  await ended
  current.setTimeout(0) // its timer would fire while another file runs
  report({ kind: 'end', left: await resourcesLeft(before) })
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

function report(message: FileReport): void {
  process.send!(message)
}
