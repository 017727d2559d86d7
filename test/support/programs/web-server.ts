/** A web server for the files of a directory, in the network namespace of a host. */
import type { Test } from 'tap'
import { startChild } from './processes.ts'

/** Python has one. It prints nothing when it listens. */
const SERVE = `
python3 -m http.server --bind 127.0.0.1 --directory "$0" 8000 > /dev/null 2>&1 &
until curl -so /dev/null http://127.0.0.1:8000; do sleep 0.1; done
echo up
cat
kill $!
`

/** Serves a directory until the test ends. `within` is that of the host. Returns the URL on the host. */
export async function serveDirectory(
  t: Pick<Test, 'teardown'>,
  { within }: { readonly within: readonly string[] },
  directory: string,
): Promise<string> {
  const server = await startChild([...within, 'sh', '-c', SERVE, directory])
  t.teardown(() => server.stop())
  return 'http://127.0.0.1:8000'
}
