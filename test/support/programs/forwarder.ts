/** Forwards a port of 127.0.0.1 to a unix socket until its input ends. */
import { connect, createServer } from 'node:net'

const [, , port, socketPath] = process.argv
createServer((socket) => {
  const other = connect(socketPath!)
  socket.pipe(other).pipe(socket)
  for (const [end, farEnd] of [
    [socket, other],
    [other, socket],
  ] as const)
    end.on('error', () => farEnd.destroy())
}).listen(Number(port), '127.0.0.1', () => console.log('up'))
process.stdin.resume().on('end', () => process.exit())
