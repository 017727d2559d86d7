import { DummyDriver, Kysely, PostgresAdapter, PostgresIntrospector, PostgresQueryCompiler } from 'kysely'
import { expect, test } from 'vitest'
import type { Tables } from '../../../../src/imds-api/database/tables.ts'
import { composeMany } from '../../../../src/imds-api/publish/compose.ts'
import { SEEN_BY_GUESTS } from '../../../../src/imds-api/region/tables.ts'

/** What no apply of a region file changes in a row that exists, or what a server keeps as it was at its creation. */
const NOT_OF_THE_FILE = [
  'servers',
  'interfaces',
  'server_groups',
  'server_group_members',
  'server_keys',
  'cloud_ips',
  'compute_actions',
]

test('an apply publishes servers again for each column of the region file that their records read', async () => {
  let sql = ''
  const dialect = {
    createAdapter: () => new PostgresAdapter(),
    createDriver: () => new DummyDriver(),
    createQueryCompiler: () => new PostgresQueryCompiler(),
    createIntrospector: (database: Kysely<unknown>) => new PostgresIntrospector(database),
  }
  expect(
    await composeMany(
      new Kysely<Tables>({
        dialect,
        log: ({ query }) => {
          sql += query.sql
        },
      }),
      ['srv-aaaaa'],
    ),
  ).toEqual([])
  const columns = [...sql.matchAll(/"(\w+)"\.("\w+"|\*)/g)].map(
    ([, table, column]) => `${table!}.${column!.replaceAll('"', '')}`,
  )
  const written = [...sql.matchAll(/\b(?:from|join) (\w+)/g)].map(([, table]) => table!) // in SQL, without quotes
  expect(written.filter((table) => !NOT_OF_THE_FILE.includes(table))).toEqual([])
  const ofTheFile = columns.filter(
    (column) => !NOT_OF_THE_FILE.includes(column.split('.')[0]!) && !column.endsWith('.id'),
  )
  const seen = Object.entries(SEEN_BY_GUESTS).flatMap(([table, names]) => names.map((name) => `${table}.${name}`))
  expect([...new Set(ofTheFile)].sort()).toEqual(seen.sort())
  expect(sql).toMatch(/order by "servers"\."id"$/) // the order in which a batch locks them
})
