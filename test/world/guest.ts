/** Requests of guests, without sockets: the steps of a request take a request and a response that only look like Node's. */
import { EventEmitter } from 'node:events'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Life } from './hypervisor.ts'
import type { Time } from './time.ts'

export interface Asked {
  readonly method: string
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  readonly body?: string
}

export interface Answer {
  readonly status: number
  readonly body: string
}

/** Sends a request to a daemon. `answered` is called with the response, if there is one. */
export function ask(
  life: Life,
  time: Time,
  place: string,
  { method, url, headers, body }: Asked,
  answered: (answer: Answer) => void,
): void {
  const [network, remoteAddress] = place.split(' ') as [string, string]
  const pipelines = life.pipelines.get(network)!
  const pipeline = remoteAddress.includes('%') ? pipelines.link : pipelines.address
  const socket = Object.assign(new EventEmitter(), {
    remoteAddress,
    readableEnded: false,
    destroyed: false,
    destroy: () => undefined,
  })
  const request = Object.assign(new EventEmitter(), {
    method,
    url,
    headers: body === undefined ? headers : { ...headers, 'content-length': String(body.length) },
    rawHeaders: Object.entries(headers).flat(),
    httpVersion: '1.1',
    socket,
    readableEnded: body === undefined,
  })
  const response = Object.assign(new EventEmitter(), {
    shouldKeepAlive: false,
    socket,
    statusCode: 0,
    writeHead: (status: number) => {
      response.statusCode = status
    },
    end: (content: string | Uint8Array = '') => {
      const text = typeof content === 'string' ? content : Buffer.from(content).toString('latin1')
      answered({ status: response.statusCode, body: text })
      response.emit('close')
    },
  })
  time.as(life, () => {
    pipeline.serve(
      { raw: request, originalUrl: url } as unknown as FastifyRequest,
      { raw: response, hijack: () => undefined } as unknown as FastifyReply,
    )
  })
  if (body === undefined) return
  time.after(
    time.dice.below(20),
    () => {
      request.emit('data', Buffer.from(body))
      request.emit('end')
    },
    life,
  )
}
