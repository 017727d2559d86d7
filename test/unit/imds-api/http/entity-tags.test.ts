import { fastify } from 'fastify'
import { expect, test } from 'vitest'
import { addEntityTag, memberPathOf, showsMember } from '../../../../src/imds-api/http/entity-tags.ts'

function aServer() {
  const server = fastify()
  server.addHook('onRoute', addEntityTag)
  server.get('/1.0/things', () => [{ id: 'a' }])
  server.get('/1.0/things/:id', (request, reply) =>
    reply.code(request.url.endsWith('none') ? 404 : 200).send({ id: 'a' }),
  )
  return server
}

test.each([
  ['/1.0/servers/:id', '/1.0/servers/:id'],
  ['/1.0/servers/{id}/lock_resource', '/1.0/servers/{id}'],
  ['/1.0/user/collaborations/:id/accept', '/1.0/user/collaborations/:id'],
  ['/1.0/account', '/1.0/account'],
  ['/1.0/account/reset_ftp_password', '/1.0/account'],
  ['/1.0/accounts/:id/reset_ftp_password', '/1.0/accounts/:id'],
  ['/1.0/user', '/1.0/user'],
  ['/1.0/users', undefined],
  ['/1.0/user/collaborations', undefined],
  ['/1.0/accounts', undefined],
  ['/1.0/servers', undefined],
  ['/token', undefined],
])('%s is about the member %s', (path, member) => expect(memberPathOf(path)).toBe(member))

test('the GET of a member and the wait for it show the member, and nothing else does', () => {
  const paths = ['/1.0/servers/:id', '/1.0/servers/{id}/wait', '/1.0/servers', '/1.0/servers/:id/lock_resource']
  expect(paths.filter(showsMember)).toEqual(paths.slice(0, 2))
})

test('a member has an entity tag; a list and an error have none', async () => {
  const server = aServer()
  const tagOf = async (url: string) => (await server.inject(url)).headers.etag
  expect(await tagOf('/1.0/things/a')).toMatch(/^"[\w-]{22}"$/)
  expect([await tagOf('/1.0/things'), await tagOf('/1.0/things/none')]).toEqual([undefined, undefined])
})

test('a client that has the present form gets 304 without a body, for GET and HEAD', async () => {
  const server = aServer()
  const { headers, body } = await server.inject('/1.0/things/a')
  const etag = String(headers.etag)
  for (const method of ['GET', 'HEAD'] as const) {
    const ask = (given: string) => server.inject({ method, url: '/1.0/things/a', headers: { 'if-none-match': given } })
    for (const given of [etag, `"x", W/${etag}`, '*']) {
      const answer = await ask(given)
      expect([answer.statusCode, answer.body, answer.headers.etag]).toEqual([304, '', etag])
      expect(answer.headers).not.toHaveProperty('content-type')
      expect([undefined, String(body.length)]).toContain(answer.headers['content-length'])
    }
    const other = await ask('"x"')
    expect([other.statusCode, other.headers.etag]).toEqual([200, etag])
  }
})
