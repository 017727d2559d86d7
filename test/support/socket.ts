/**
 * Raw bytes to a guest listener, and everything that comes back until the connection ends.
 */
import { connect } from 'node:net'

/** What came back over one connection. */
export interface RawAnswer { readonly text: string, readonly status: number, readonly headers: Readonly<Record<string, string>>, readonly body: string }

/** Sends `bytes` (latin1) and reads until the server closes. */
export async function exchange(port: number, bytes: string, { host = '127.0.0.1', localAddress }: { host?: string, localAddress?: string } = {}): Promise<RawAnswer> {
  const text = await new Promise<string>((resolve, reject) => {
    let received = ''
    const socket = connect({ port, host, ...localAddress !== undefined && { localAddress } }, () => { socket.write(bytes, 'latin1') })
    socket.setEncoding('latin1')
    socket.on('data', (chunk: string) => { received += chunk })
    socket.on('close', () => { resolve(received) })
    socket.on('error', (error: NodeJS.ErrnoException) => { if (error.code !== 'ECONNRESET' || received === '') reject(error) })
  })
  return parseAnswer(text)
}

/** The first answer of a text. */
export function parseAnswer(text: string): RawAnswer {
  const end = text.indexOf('\r\n\r\n')
  const [statusLine = '', ...lines] = text.slice(0, end).split('\r\n')
  const headers = Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf(':')).toLowerCase(), line.slice(line.indexOf(':') + 1).trim()]))
  return { text, status: Number(statusLine.split(' ')[1]), headers, body: text.slice(end + 4) }
}
