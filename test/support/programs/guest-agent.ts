/**
 * Sends requests inside a guest: reads them as lines of JSON and prints the responses as lines of JSON until its input
 * ends.
 */
import { request } from 'node:http'
import { createInterface } from 'node:readline'
import type { Ask } from '../netns/namespaces.ts'

const [, , host] = process.argv
const TIMEOUT_MS = 30_000

createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, ask } = JSON.parse(line) as { id: number; ask: Ask }
  const print = (result: object) => console.log(JSON.stringify({ id, result }))
  const fail = (error: unknown) => print({ error: String(error) })
  const asked = request({ ...ask, host, agent: false, timeout: TIMEOUT_MS }, (response) => {
    response.toArray().then((chunks) => {
      print({
        status: response.statusCode,
        headers: response.headers,
        body: Buffer.concat(chunks as Buffer[]).toString('base64'),
      })
    }, fail)
  })
  asked
    .on('error', fail)
    .on('timeout', () => asked.destroy(new Error('no answer')))
    .end()
})
console.log('up')
