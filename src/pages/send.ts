import type { FastifyReply, FastifyRequest } from 'fastify'
import { PAGE_HEADERS } from './document.ts'
import { parseQuestion, type Question } from './search.ts'

const BUSY = 'too many wait for this page: try again'

/** Sends the page that the query of a request wants; 503 if there is none now. */
export async function sendPage(
  request: FastifyRequest,
  reply: FastifyReply,
  page: (question: Question) => Promise<string | undefined>,
): Promise<FastifyReply> {
  const text = await page(parseQuestion(request.query))
  if (text === undefined) return reply.code(503).header('retry-after', '1').send({ error: BUSY })
  return reply.headers(PAGE_HEADERS).send(text)
}
