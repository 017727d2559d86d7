/** Requests of guests, without sockets: the steps of a request take a request and a response that only look like Node's. */
import { EventEmitter } from 'node:events'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Life } from './hypervisor.ts'
import type { Time } from './time.ts'

export interface Asked {
  readonly url: string
  readonly method?: 'PUT'
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: string
}

export interface Answer {
  readonly status: number
  readonly body: string
}

/** Sends a request to a daemon. `answered` is called with the response, unless the daemon was killed before. */
export function ask(life: Life, time: Time, place: string, asked: Asked, answered: (answer: Answer) => void): void {
  const { url, method = 'GET', headers = {}, body } = asked
  const [network, remoteAddress] = place.split(' ') as [string, string]
  const pipeline = life.pipelines.get(network)!
  const emitter = <T extends object>(fields: T) => Object.assign(new EventEmitter(), fields)
  const socket = emitter({ remoteAddress, readableEnded: false, destroyed: false, destroy: () => undefined })
  const request = emitter({
    method,
    url,
    headers: body === undefined ? headers : { ...headers, 'content-length': String(body.length) },
    rawHeaders: Object.entries(headers).flat(),
    httpVersion: '1.1',
    socket,
    readableEnded: body === undefined,
  })
  const response = emitter({
    shouldKeepAlive: false,
    socket,
    statusCode: 0,
    writeHead: (status: number) => {
      response.statusCode = status
    },
    end: (content: string | Uint8Array = '') => {
      const text = typeof content === 'string' ? content : Buffer.from(content).toString('latin1')
      if (life.isAlive) answered({ status: response.statusCode, body: text })
      response.emit('close')
    },
  })
  const reply = { raw: response, hijack: () => undefined }
  time.as(life, () => {
    pipeline.serve({ raw: request, originalUrl: url } as unknown as FastifyRequest, reply as unknown as FastifyReply)
  })
  if (body === undefined) return
  const send = () => {
    request.emit('data', Buffer.from(body))
    request.emit('end')
  }
  time.after(time.dice.below(20), send, life)
}
