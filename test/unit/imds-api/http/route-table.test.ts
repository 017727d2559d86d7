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

test.each([
  ['/1.0/server', '/1.0/servers'],
  ['/1.0/server/', '/1.0/servers'],
  ['/1.0/server/srv-abcde', '/1.0/servers/srv-abcde'],
  ['/1.0/Servers/srv-abcde/stat', '/1.0/servers/srv-abcde/start'],
  ['/servers', '/1.0/servers'],
  ['/server/srv-abcde', '/1.0/servers/srv-abcde'],
  ['/v1.0/servers', '/1.0/servers'],
  ['/1.0/server_type', '/1.0/server_types'],
  ['/tokens', '/token'],
  ['/1.0/token', undefined],
  ['/1.0/machines', undefined],
  ['/1.0/volumes/a/b', undefined],
  ['/', undefined],
  ['//', undefined],
  ['/1.0//servers', undefined],
  ['', undefined],
])('by %s, %s was meant', (path, meant) => expect(aTable().nearestPath(path)).toBe(meant))

test('for a long path nothing is compared', () => {
  expect(aTable().nearestPath(`/1.0/server/${'x'.repeat(64)}`)).toBe(`/1.0/servers/${'x'.repeat(64)}`)
  for (const path of [`/1.0/server/${'x'.repeat(65)}`, `/1.0/server${'/x'.repeat(100_000)}`, '/'.repeat(100_000)])
    expect(aTable().nearestPath(path)).toBeUndefined()
})
