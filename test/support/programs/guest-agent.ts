/**
 * Sends requests inside of a guest: reads them as lines of JSON, prints the responses as lines of JSON, and ends with its input.
 */
import { request } from 'node:http'
import { createInterface } from 'node:readline'
import type { Ask } from '../netns/namespaces.ts'

const [, , host] = process.argv
const NO_ANSWER_MS = 30_000

createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, ask } = JSON.parse(line) as { id: number, ask: Ask }
  const say = (said: object) => { console.log(JSON.stringify({ id, said })) }
  const fail = (error: unknown) => { say({ error: String(error) }) }
  const asked = request({ ...ask, host, agent: false, timeout: NO_ANSWER_MS }, (response) => {
    response.toArray().then((chunks) => {
      say({ status: response.statusCode, headers: response.headers, body: Buffer.concat(chunks as Buffer[]).toString('base64') })
    }, fail)
  })
  asked.on('error', fail).on('timeout', () => { asked.destroy(new Error('no answer')) }).end()
})
console.log('up')
