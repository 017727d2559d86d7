/**
 * One guest that sends requests without end, in one of several ways, until its input closes: FLOODER KIND PORT ADDRESS. Loopback only.
 */
import { connect, type Socket } from 'node:net'

const [, , kind, port, address = ''] = process.argv
if (!address.startsWith('127.')) throw new Error('floods stay on loopback')

const REQUEST = 'GET /latest/meta-data/ HTTP/1.1\r\nHost: x\r\n\r\n'
const USER_DATA = 'GET /latest/user-data HTTP/1.1\r\nHost: x\r\n\r\n'
const PIPELINED = 500
/** The delay before a closed connection is opened again, in ms. */
const AGAIN_MS = 1

let answered = 0
let isOver = false

/** Keeps one connection open. `opened` is called for each connection that replaces it. */
function keep(opened: (socket: Socket) => void): void {
  if (isOver) return
  const socket = connect({ port: Number(port), host: '127.0.0.1', localAddress: address, noDelay: true }, () => { opened(socket) })
  socket.on('error', () => { /* reset: what it deserves */ }).on('close', () => { setTimeout(keep, AGAIN_MS, opened) })
}

/** How many connections, and what each does. */
const KINDS: Record<string, [number, (socket: Socket) => void]> = {
  'keep-alive': [64, (socket) => {
    socket.on('data', (chunk) => {
      if (!chunk.includes('HTTP/1.1')) return
      answered += 1
      socket.write(REQUEST)
    }).write(REQUEST)
  }],
  pipelining: [64, (socket) => {
    socket.on('data', () => { answered += 1 })
    const push = () => { if (socket.writable && socket.write(REQUEST.repeat(PIPELINED))) setImmediate(push) }
    socket.on('drain', push)
    push()
  }],
  'new connections': [200, (socket) => {
    socket.on('data', () => {
      answered += 1
      socket.destroy()
    }).write(REQUEST)
  }],
  'slow headers': [500, (socket) => {
    socket.write('GET /latest/ HTTP/1.1\r\nX-Slow: ')
    const drip = setInterval(() => { socket.write('x') }, 500)
    socket.resume().on('close', () => { clearInterval(drip) })
  }],
  bodies: [64, (socket) => {
    socket.write(`POST /latest/meta-data/ HTTP/1.1\r\nHost: x\r\nContent-Length: ${String(2 ** 40)}\r\n\r\n`)
    const body = Buffer.alloc(65_536)
    const push = () => { if (socket.writable && socket.write(body)) setImmediate(push) }
    socket.on('data', () => { answered += 1 }).on('drain', push)
    push()
  }],
  'never reading': [64, (socket) => {
    socket.pause().write(USER_DATA.repeat(PIPELINED))
  }],
}

const [connections, act] = KINDS[kind ?? ''] ?? [0, () => { /* nothing */ }]
for (let i = 0; i < connections; i++) keep(act)
process.stdin.resume().on('end', () => {
  isOver = true
  console.log(answered)
  process.exit()
})
console.log('up')
