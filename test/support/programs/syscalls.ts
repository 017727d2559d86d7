/**
 * Traces the system calls by which a program changes files (strace). Their order shows what a power failure would leave
 * on disk.
 */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { must } from './processes.ts'

/**
 * Runs a program until it ends. Returns the successful calls below a directory in order, with paths relative to it:
 * `fsync a`, `rename a b`, `unlink a`. The directory itself is `.`.
 */
export async function traceFileCalls(command: readonly string[], directory: string): Promise<readonly string[]> {
  const own = mkdtempSync(join(tmpdir(), 'imds-strace-'))
  try {
    const output = join(own, 'calls')
    await must([
      'strace',
      '--follow-forks',
      '--decode-fds=path',
      '--string-limit=4096',
      '--trace=fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat',
      `--output=${output}`,
      ...command,
    ])
    return readFileSync(output, 'utf8')
      .split('\n')
      .flatMap((line) => {
        const [, name, args] = /^\d+ +(fsync|fdatasync|rename|unlink)(?:at2?)?\((.*)\) += 0$/.exec(line) ?? []
        if (name === undefined || args === undefined) return []
        const paths = [...args.matchAll(/(?<=["<])[^">]+/g)]
          .map(([path]) => path)
          .filter((path) => path === directory || path.startsWith(`${directory}/`))
        return paths.length === 0
          ? []
          : [[name, ...paths.map((path) => path.slice(directory.length + 1) || '.')].join(' ')]
      })
  } finally {
    rmSync(own, { recursive: true })
  }
}
