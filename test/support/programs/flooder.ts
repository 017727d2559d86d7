/**
 * A guest that floods the daemon in one of several ways until its input ends. Usage: `flooder.ts KIND PORT ADDRESS`;
 * ADDRESS must be a loopback address. Prints the number of responses at the end.
 */
import { connect, type Socket } from 'node:net'

const [, , kind, port, address = ''] = process.argv
if (!address.startsWith('127.')) throw new Error('ADDRESS must be a loopback address')

const REQUEST = 'GET /latest/meta-data/ HTTP/1.1\r\nHost: x\r\n\r\n'
const USER_DATA = 'GET /latest/user-data HTTP/1.1\r\nHost: x\r\n\r\n'
const PIPELINED = 500
const RECONNECT_MS = 1

let answered = 0
let isOver = false

/** Keeps one connection open: opens another when it is closed. `opened` is called for each. */
function keepOpen(opened: (socket: Socket) => void): void {
  if (isOver) return
  const socket = connect({ port: Number(port), host: '127.0.0.1', localAddress: address, noDelay: true }, () => {
    opened(socket)
  })
  socket.on('error', () => undefined).on('close', () => setTimeout(keepOpen, RECONNECT_MS, opened))
}

/** For each kind of flood: the number of connections, and what each does when it is open. */
const KINDS: Record<string, [number, (socket: Socket) => void]> = {
  'keep-alive': [
    64,
    (socket) => {
      socket
        .on('data', (chunk) => {
          if (!chunk.includes('HTTP/1.1')) return
          answered += 1
          socket.write(REQUEST)
        })
        .write(REQUEST)
    },
  ],
  pipelining: [
    64,
    (socket) => {
      socket.on('data', () => {
        answered += 1
      })
      const push = () => {
        if (socket.writable && socket.write(REQUEST.repeat(PIPELINED))) setImmediate(push)
      }
      socket.on('drain', push)
      push()
    },
  ],
  'new connections': [
    200,
    (socket) => {
      socket
        .on('data', () => {
          answered += 1
          socket.destroy()
        })
        .write(REQUEST)
    },
  ],
  'slow headers': [
    500,
    (socket) => {
      socket.write('GET /latest/ HTTP/1.1\r\nX-Slow: ')
      const drip = setInterval(() => socket.write('x'), 500)
      socket.resume().on('close', () => clearInterval(drip))
    },
  ],
  bodies: [
    64,
    (socket) => {
      socket.write(`POST /latest/meta-data/ HTTP/1.1\r\nHost: x\r\nContent-Length: ${2 ** 40}\r\n\r\n`)
      const body = Buffer.alloc(65_536)
      const push = () => {
        if (socket.writable && socket.write(body)) setImmediate(push)
      }
      socket
        .on('data', () => {
          answered += 1
        })
        .on('drain', push)
      push()
    },
  ],
  'never reading': [64, (socket) => socket.pause().write(USER_DATA.repeat(PIPELINED))],
  'line breaks': [
    64,
    (socket) => {
      const breaks = Buffer.from('\r\n'.repeat(32_768))
      const push = () => {
        if (socket.writable && socket.write(breaks)) setImmediate(push)
      }
      socket
        .on('data', () => {
          answered += 1
        })
        .on('drain', push)
      push()
    },
  ],
  malformed: refused('garbage\r\n\r\n'),
  CONNECT: refused('CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n'),
}

/** Sends what is refused with a closed connection, and connects again. */
function refused(bytes: string): [number, (socket: Socket) => void] {
  return [
    64,
    (socket) => {
      socket
        .on('data', () => {
          answered += 1
          socket.destroy()
        })
        .write(bytes)
    },
  ]
}

const [connections, act] = KINDS[kind ?? ''] ?? [0, () => undefined]
for (let i = 0; i < connections; i++) keepOpen(act)
process.stdin.resume().on('end', () => {
  isOver = true
  console.log(answered)
  process.exit()
})
console.log('up')
