/**
 * A keep-alive connection that sends one request at a time. It costs less CPU time than fetch, so that a client does
 * not slow down the server that it measures.
 */
import { connect, type Socket } from 'node:net'

/** A response. `status` 0: the connection ended before it. `ms`: since the request was sent. */
export interface Reply {
  readonly status: number
  readonly retryAfter: string | undefined
  readonly body: string
  readonly ms: number
}

export class Wire {
  readonly #socket: Socket
  #received = ''
  #done: (() => void) | undefined

  constructor(socket: Socket) {
    this.#socket = socket
    socket.setEncoding('latin1').setNoDelay(true)
    socket.on('data', (text: string) => {
      this.#received += text
      this.#done?.()
    })
    socket.on('error', () => undefined)
    socket.on('close', () => this.#done?.())
  }

  /** Opens a connection to a port of 127.0.0.1. */
  static open(port: number, localAddress: string): Promise<Wire> {
    return new Promise((resolve, reject) => {
      const socket = connect({ port, host: '127.0.0.1', localAddress }, () => {
        socket.off('error', reject)
        resolve(new Wire(socket))
      }).once('error', reject)
    })
  }

  get isOpen(): boolean {
    return !this.#socket.destroyed
  }

  /** Sends a request (`formatRequest`), and waits for its response. */
  ask(text: string): Promise<Reply> {
    const sentMs = performance.now()
    this.#received = ''
    this.#socket.write(text)
    return new Promise((resolve) => {
      this.#done = () => {
        const whole = parseResponse(this.#received)
        if (whole === undefined && this.isOpen) return
        this.#done = undefined
        resolve({ status: 0, retryAfter: undefined, body: '', ...whole, ms: performance.now() - sentMs })
      }
      this.#done()
    })
  }

  end(): void {
    this.#socket.destroy()
  }
}

/** A request of HTTP/1.1, with JSON if it has a body. */
export function formatRequest(token: string, method: string, path: string, body?: object): string {
  const json = body === undefined ? '' : JSON.stringify(body)
  return [
    `${method} ${path} HTTP/1.1`,
    'Host: 127.0.0.1',
    `Authorization: Bearer ${token}`,
    ...(json === '' ? [] : ['Content-Type: application/json', `Content-Length: ${Buffer.byteLength(json)}`]),
    '',
    json,
  ].join('\r\n')
}

/** Undefined: a part of it is missing. */
function parseResponse(text: string): Omit<Reply, 'ms'> | undefined {
  const end = text.indexOf('\r\n\r\n')
  if (end === -1) return undefined
  const head = text.slice(0, end)
  const body = text.slice(end + 4)
  if (body.length < Number(/^content-length: (\d+)/im.exec(head)?.[1] ?? 0)) return undefined
  return { status: Number(head.slice(9, 12)), retryAfter: /^retry-after: (\d+)/im.exec(head)?.[1], body }
}
