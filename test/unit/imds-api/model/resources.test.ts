import { readdirSync, readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { ABOUT } from '../../../../src/imds-api/http/openapi-about.ts'
import { ACCOUNT_LIMITS } from '../../../../src/imds-api/model/account-limits.ts'
import { ALL_ROWS, type NamedRow } from '../../../../src/imds-api/model/resources.ts'
import { RESOURCES } from '../../../../src/imds-api/resources/kit/table.ts'

const SRC = new URL('../../../../src/imds-api/', import.meta.url).pathname
const folder = (name: string) =>
  readdirSync(`${SRC}${name}`)
    .filter((file) => file.endsWith('.ts'))
    .map((file) => readFileSync(`${SRC}${name}/${file}`, 'utf8'))
    .join('\n')
const migrations = folder('database/migrations')
const routes = folder('resources')

/** What is missing of a resource that has a table. */
function missingOf({ name, prefix, table, path = table, givesIds, present, limit }: NamedRow): string[] {
  const checks: readonly (readonly [what: string, is: boolean])[] = [
    [`the table ${table!} in a migration`, migrations.includes(`create table ${table!} (`)],
    [`the sequence ids_${prefix} in a migration`, !givesIds || migrations.includes(`create sequence ids_${prefix};`)],
    [
      `the column ${table!}_limit, with its default, in a migration`,
      limit === undefined ||
        new RegExp(
          `\\b${table!}_limit integer not null${limit.default === undefined ? '' : ` default ${limit.default}`}[,;]`,
        ).test(migrations),
    ],
    ['its table in `present`', present?.startsWith(`${table!}.`) !== false],
    ['routes', new RegExp(`\\bNESTED\\.${name}\\b|(?:Form|formsOf)\\(\\s*'${name}'`).test(routes)],
    [
      'a section of the OpenAPI document',
      ABOUT.tags.some((tag) => tag.name === RESOURCES[name as keyof typeof RESOURCES].tags[0]),
    ],
    ['a path in lower case', /^[a-z_]+$/.test(path!)],
  ]
  return checks.filter(([, is]) => !is).map(([what]) => `${name} lacks ${what}`)
}

test('nothing is missing of a resource: tables, sequences, limits, routes, section', () => {
  expect(ALL_ROWS.filter(({ table }) => table !== undefined).flatMap(missingOf)).toEqual([])
})

test('a resource without a table has a path, and is not implemented', () => {
  const rows = ALL_ROWS.filter(({ table }) => table === undefined)
  expect(rows.filter(({ path, unimplemented }) => path === undefined || unimplemented !== 'all')).toEqual([])
})

test('no two resources have one prefix, type or path', () => {
  for (const of of [
    ({ prefix }: NamedRow) => prefix,
    ({ type }: NamedRow) => type,
    ({ table, path = table }: NamedRow) => path,
  ])
    expect(new Set(ALL_ROWS.map(of)).size).toBe(ALL_ROWS.length)
})

test('each limit of a resource has a default and a text', () => {
  expect(ACCOUNT_LIMITS.images_limit).toMatchObject({ default: 50, minimum: 0 })
  expect(ACCOUNT_LIMITS.api_clients_limit).toEqual({ default: 100, minimum: 0, of: 'API clients' })
})
