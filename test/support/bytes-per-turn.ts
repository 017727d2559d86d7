/** How much is hashed, encrypted and decrypted between two turns of the event loop: what keeps guests waiting, without a clock. */
import { createCipheriv, createDecipheriv, createHash } from 'node:crypto'

interface Updates { update(bytes: Uint8Array): unknown }

/** Runs a task and gives the most bytes that one turn of the event loop passed to hashes, and to ciphers. */
export async function mostBytesPerTurn(task: () => Promise<unknown>): Promise<{ readonly hashed: number, readonly ciphered: number }> {
  const most = { hashed: 0, ciphered: 0 }
  const inTurn = { hashed: 0, ciphered: 0 }
  const gcm = [Buffer.alloc(32), Buffer.alloc(12)] as const
  const restores = [
    counted(createHash('sha256'), (bytes) => { most.hashed = Math.max(most.hashed, inTurn.hashed += bytes) }),
    counted(createCipheriv('aes-256-gcm', ...gcm), (bytes) => { most.ciphered = Math.max(most.ciphered, inTurn.ciphered += bytes) }),
    counted(createDecipheriv('aes-256-gcm', ...gcm), (bytes) => { most.ciphered = Math.max(most.ciphered, inTurn.ciphered += bytes) }),
  ]
  let turn: NodeJS.Immediate
  const nextTurn = () => {
    Object.assign(inTurn, { hashed: 0, ciphered: 0 })
    turn = setImmediate(nextTurn)
  }
  turn = setImmediate(nextTurn)
  try {
    await task()
    return most
  } finally {
    clearImmediate(turn)
    for (const restore of restores) restore()
  }
}

/** Counts what every object of this kind is given from here on. */
function counted(example: Updates, count: (bytes: number) => void): () => void {
  const prototype = Object.getPrototypeOf(example) as Updates
  const { update } = prototype
  prototype.update = function (this: Updates, bytes, ...more: unknown[]) {
    count(bytes.length)
    return Reflect.apply(update, this, [bytes, ...more]) as unknown
  }
  return () => { prototype.update = update }
}
