/**
 * The entity tags of members, such as a server: a digest of the body of their GET, so the tag changes whenever what a
 * client sees does, and not otherwise. resources/kit/conditions.ts compares it before a change.
 */
import type { onSendHookHandler, RouteOptions } from 'fastify'
import { entityTagOf } from '../../metadata/content.ts'
import { namesWeakly } from '../../runtime/http.ts'

/** The path of a member, at the begin of its own path and those of its actions; as in a route or in the document. */
const MEMBER = /^\/1\.0\/(?:(?:user\/)?[a-z_]+\/(?::id|\{id\})|(?:account|user)(?=$|\/reset_))/

/** The path of the member that a request is about; undefined: none. `path`: of a route, or in the document. */
export function memberPathOf(path: string): string | undefined {
  return MEMBER.exec(path)?.[0]
}

/** True for the path of a GET that responds with the full form of a member: its own, or that of a wait for it. */
export function showsMember(path: string): boolean {
  const member = memberPathOf(path)
  return member !== undefined && (path === member || path === `${member}/wait`)
}

/** Gives the GET of a whole member an `ETag`, and has it respect `If-None-Match`: a hook for each route. */
export function addEntityTag(route: RouteOptions): void {
  if (!['GET', 'HEAD'].includes(String(route.method)) || !showsMember(route.url)) return
  route.onSend = [sendTag, ...[route.onSend ?? []].flat()] // first: Fastify's own hook of HEAD takes the body away
}

const sendTag: onSendHookHandler = (request, reply, payload, done) => {
  if (reply.statusCode !== 200 || typeof payload !== 'string') {
    done(null, payload)
    return
  }
  const tag = entityTagOf(payload)
  void reply.header('ETag', tag)
  const given = request.headers['if-none-match']
  if (given === undefined || !namesWeakly(given, tag)) {
    done(null, payload)
    return
  }
  void reply.code(304).removeHeader('Content-Type')
  done(null, request.method === 'HEAD' ? payload : null) // Fastify needs the length of the body of a HEAD
}
