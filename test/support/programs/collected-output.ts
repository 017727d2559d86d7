/** An output of imdsctl that collects what a command prints, for tests that run a command in their own process. */
import { Writable } from 'node:stream'
import { failureOf, printFailure } from '../../../src/imdsctl/failure.ts'
import { Output } from '../../../src/runtime/output.ts'

/** The output, and the text of its two streams so far. */
export interface CollectedOutput {
  readonly output: Output
  readonly text: { stdout: string; stderr: string }
}

/** Builds an output in the form of `--json` or not. */
export function collectOutput(json = false): CollectedOutput {
  const text = { stdout: '', stderr: '' }
  const [out, err] = (['stdout', 'stderr'] as const).map(
    (name) =>
      new Writable({
        decodeStrings: false,
        write: (chunk, _encoding, done) => {
          text[name] += String(chunk)
          done()
        },
      }),
  )
  const output = new Output('imdsctl', out!, err!, () => {
    throw new Error('output was lost')
  })
  output.use({ json, continues: true })
  return { output, text }
}

/** The result of a command that ran in this process. */
export interface CommandResult {
  readonly status: number
  readonly stdout: string
  readonly stderr: string
}

/** Runs a command with a collected output, and reports as a process would: a Failure by its exit status. */
export async function runCommand(command: (output: Output) => Promise<number>, json = false): Promise<CommandResult> {
  const { output, text } = collectOutput(json)
  const status = await command(output).catch((error: unknown) => {
    const failure = failureOf(error)
    printFailure(output, failure)
    return failure.status
  })
  return { status, ...text }
}
