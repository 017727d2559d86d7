/**
 * Opens connections inside a namespace and sends the bytes of each in pieces, for test/fuzz/cuts.ts.
 *
 * Each line of input is a JSON list of connections, and a connection is a list of pieces: it prints `sent` when all are
 * sent. The line `stop` closes all connections, and prints a JSON list of the bytes that were received on each.
 */
import { connect, type Socket } from 'node:net'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'

const [, , host = '', pauseMs = ''] = process.argv
let open: { readonly socket: Socket; text: string }[] = []

async function sendPieces(pieces: readonly string[]): Promise<void> {
  const connection = { socket: connect({ host, port: 80, noDelay: true }), text: '' }
  const { socket } = connection
  open.push(connection)
  socket
    .setEncoding('latin1')
    .on('data', (text: string) => {
      connection.text += text
    })
    .on('error', () => undefined)
  await new Promise((resolve) => socket.once('connect', resolve).once('close', resolve))
  for (const piece of pieces) {
    socket.write(piece, 'latin1')
    await sleep(Number(pauseMs))
  }
}

createInterface({ input: process.stdin }).on('line', (line) => {
  if (line === 'stop') {
    for (const { socket } of open) socket.destroy()
    console.log(JSON.stringify(open.map(({ text }) => text)))
    open = []
  } else {
    void Promise.all((JSON.parse(line) as string[][]).map(sendPieces)).then(() => console.log('sent'))
  }
})
console.log('up')
