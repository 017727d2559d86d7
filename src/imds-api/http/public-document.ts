/** JSON documents that need no access token. They have an entity tag. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { entityTagOf } from '../../metadata/content.ts'
import { namesWeakly } from '../../runtime/http.ts'

type Send = (request: FastifyRequest, reply: FastifyReply) => FastifyReply

/** Builds the handler of a document that is made once, at its first request. */
export function publicDocument(make: () => unknown): Send {
  let send: Send | undefined
  return (request, reply) => (send ??= sendingOf(JSON.stringify(make())))(request, reply)
}

function sendingOf(text: string): Send {
  const [bytes, tag] = [Buffer.from(text), entityTagOf(text)]
  return ({ headers: { 'if-none-match': given } }, reply) => {
    void reply.header('ETag', tag)
    if (given !== undefined && namesWeakly(given, tag)) return reply.code(304).send()
    return reply.type('application/json; charset=utf-8').send(bytes)
  }
}
