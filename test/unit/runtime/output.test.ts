/**
 * What is printed, and what happens when it cannot be. test/imdsd/outputs.test.ts runs the programs with a full disk
 * and closed pipes.
 */
import { Writable } from 'node:stream'
import { expect, test } from 'vitest'
import { EXIT } from '../../../src/runtime/exit-status.ts'
import { Output } from '../../../src/runtime/output.ts'

/** An output, with what each of its streams got. `fault`: why standard output cannot be written. */
function anOutput({ fault, isTTY = false }: { fault?: string; isTTY?: boolean } = {}) {
  const printed = { out: '', err: '', ended: [] as number[] }
  const stream = (to: 'out' | 'err', code?: string) =>
    new Writable({
      write: (chunk, _encoding, done) => {
        if (code !== undefined) {
          done(Object.assign(new Error(`write ${code}`), { code }))
          return
        }
        printed[to] += String(chunk)
        done()
      },
    })
  const output = new Output(
    'imdsctl',
    Object.assign(stream('out', fault), { isTTY }),
    Object.assign(stream('err'), { isTTY }),
    (status) => printed.ended.push(status),
  )
  return { output, printed }
}

test('a result is its text, or with --json its data on one line; messages name the program', async () => {
  const { output, printed } = anOutput()
  output.result({ id: 'a' }, 'one a')
  output.use({ json: true, continues: true })
  output.result({ id: 'b' }, 'one b')
  output.warn('no c')
  expect([await output.finish(EXIT.notFound), printed]).toEqual([
    EXIT.notFound,
    { out: 'one a\n{"formatVersion":1,"id":"b"}\n', err: 'imdsctl: no c\n', ended: [] },
  ])
})

test('a command that continues reports lost output at its end; a failure of its own keeps its status', async () => {
  for (const [status, reported] of [
    [EXIT.done, EXIT.outputLost],
    [EXIT.refused, EXIT.refused],
  ] as const) {
    const { output, printed } = anOutput({ fault: 'EPIPE' })
    output.use({ json: false, continues: true })
    output.print('one')
    output.print('two')
    expect([await output.finish(status), printed]).toEqual([
      reported,
      { out: '', err: 'imdsctl: output was lost: write EPIPE; its last line was: two\n', ended: [] },
    ])
  }
})

test('a command that only prints ends at the loss: quietly if its reader left, else with a message', async () => {
  for (const [fault, status, err] of [
    ['EPIPE', EXIT.done, ''],
    ['ENOSPC', EXIT.outputLost, 'imdsctl: output was lost: write ENOSPC\n'],
  ] as const) {
    const { output, printed } = anOutput({ fault })
    output.print('one')
    await output.finish(EXIT.done)
    expect(printed.ended).toEqual([status])
    expect(printed.err.startsWith(err)).toBe(true)
  }
})

test('control characters of results and messages are escaped, except tab and newline', async () => {
  const hostile = 'a\u001b[2Jb\u009b31m\u007f\r\n\tc'
  const { output, printed } = anOutput()
  output.print(hostile)
  output.warn(hostile)
  await output.finish(EXIT.done)
  expect([printed.out, printed.err]).toEqual(
    ['', 'imdsctl: '].map((start) => `${start}a\\u001b[2Jb\\u009b31m\\u007f\\u000d\n\tc\n`),
  )
})

test('bytes are written as they are, and only to a terminal with their control characters escaped', async () => {
  for (const [isTTY, out] of [
    [false, 'x\u001b\n'],
    [true, 'x\\u001b\n'],
  ] as const) {
    const { output, printed } = anOutput({ isTTY })
    output.write(Buffer.from('x\u001b\n'))
    await output.finish(EXIT.done)
    expect(printed.out).toBe(out)
  }
})
