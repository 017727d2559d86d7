/**
 * Sends the requests of load/load.ts inside a guest: several clients read the tree again and again without a pause.
 *
 * The line `count` prints the number of requests so far; any other line stops the clients and prints the figures as
 * JSON.
 */
import { Agent, request, type ClientRequest } from 'node:http'
import { createInterface } from 'node:readline'
import { crawl } from '../fixtures/crawl.ts'
import type { Answer } from './daemon.ts'
import type { Failure, Figures, Load } from '../load/load.ts'

const [, , host, load] = process.argv
const { clients, keepAlive, localPort } = JSON.parse(load!) as Load

let requests = 0
let retried = 0
let slowestMs = 0
let isStopping = false
const failed: Failure[] = []
const answers = new Map<string, Set<string>>()

async function get(path: string, agent: Agent | false): Promise<Answer> {
  const startedMs = Date.now()
  requests++
  const answer = await ask(path, agent)
  const endedMs = Date.now()
  slowestMs = Math.max(slowestMs, endedMs - startedMs)
  if (answer.status !== 200)
    failed.push({
      path,
      startedMs,
      endedMs,
      what: answer.status === 0 ? answer.body.toString() : String(answer.status),
    })
  else answers.set(path, (answers.get(path) ?? new Set()).add(answer.body.toString('latin1')))
  return answer
}

/**
 * If the server closed a connection between two requests, the client retries on another (RFC 9112, 9.3.1): that is no
 * failure.
 */
async function ask(path: string, agent: Agent | false): Promise<Answer> {
  const asked = request({ host, path, agent, timeout: 30_000, ...(localPort !== undefined && { localPort }) })
  try {
    return await answerOf(asked)
  } catch (error) {
    if (asked.reusedSocket && !isStarted.has(asked)) {
      retried++
      return await ask(path, agent)
    }
    return { status: 0, headers: {}, body: Buffer.from((error as NodeJS.ErrnoException).code ?? String(error)) }
  }
}

const isStarted = new WeakSet<ClientRequest>()

function answerOf(asked: ClientRequest): Promise<Answer> {
  return new Promise((resolve, reject) => {
    asked.on('response', (response) => {
      isStarted.add(asked)
      response.toArray().then((chunks) => {
        resolve({
          status: response.statusCode ?? 0,
          headers: response.headers,
          body: Buffer.concat(chunks as Buffer[]),
        })
      }, reject)
    })
    asked.on('timeout', () => asked.destroy(Object.assign(new Error(), { code: 'no answer' })))
    asked.on('error', reject).end()
  })
}

const work = Array.from({ length: clients }, async () => {
  const agent = keepAlive && new Agent({ keepAlive: true, maxSockets: 1 })
  while (!isStopping) await crawl('latest', (path) => get(path, agent))
  if (agent) agent.destroy()
})
createInterface({ input: process.stdin })
  .on('line', (line) => {
    if (line === 'count') {
      console.log(requests)
      return
    }
    isStopping = true
    void Promise.all(work).then(() => {
      const figures: Figures = {
        requests,
        retried,
        slowestMs,
        failed,
        answers: Object.fromEntries([...answers].map(([path, bodies]) => [path, [...bodies]])),
      }
      console.log(JSON.stringify(figures))
    })
  })
  .on('close', () => process.exit())
console.log('up')
