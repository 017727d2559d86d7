import { expect, test } from 'vitest'
import { RouteTable } from '../../../../src/imds-api/http/route-table.ts'

function aTable(): RouteTable {
  const table = new RouteTable()
  for (const [url, ...methods] of [
    ['/token', 'POST'],
    ['/1.0/servers', 'GET', 'HEAD'],
    ['/1.0/servers', 'POST'],
    ['/1.0/servers/:id', 'GET'],
    ['/1.0/servers/:id/start', 'POST'],
    ['/1.0/server_types', 'GET'],
    ['/1.0/user', 'GET'],
    ['/1.0/users', 'GET'],
    ['/1.0/volumes/*', 'PUT'],
  ] as const)
    table.add(url, methods)
  return table
}

test('a path has the methods of its routes, with and without a final slash', () => {
  expect(
    ['/1.0/servers', '/1.0/servers/', '/1.0/servers/x', '/1x0/servers'].map((path) => aTable().methodsOf(path)),
  ).toEqual([['GET', 'HEAD', 'POST'], ['GET', 'HEAD', 'POST'], ['GET'], []])
})
