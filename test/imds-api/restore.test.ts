/**
 * The recipe of docs/operations/imds-api.md for a backup and its restore, with an imds-api before and after. As with
 * Debian's server, the user of imds-api may make no database, and a superuser runs the recipe.
 */
import { readFileSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { ask } from '../support/load/api-load.ts'
import { startImdsApi, startProcess } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { POSTGRES_PROGRAMS, startPostgres } from '../support/programs/postgres.ts'
import { run } from '../support/programs/processes.ts'
import { executed } from '../tools/documents.ts'
import { openTestStore } from '../support/test-store.ts'
import { without } from '../support/packages.ts'

t.test(
  'the recipe of a backup and its restore stops at each step that fails',
  { skip: without('postgres') },
  async (t) => {
    const postgres = await startPostgres(t)
    const shell = async (script: string, env: Readonly<Record<string, string>> = {}) => {
      const commands = `cd ${postgres.directory}; imds-api() { ${process.execPath} ${IMDS_API} "$@"; }; ${script}`
      const { status, stdout, stderr } = await run(['bash', '--norc', '-c', commands], {
        env: {
          ...programEnvironment(),
          PATH: `${POSTGRES_PROGRAMS}:${process.env['PATH']!}`,
          PGHOST: postgres.directory,
          PGPORT: String(postgres.port),
          PGUSER: 'postgres',
          ...env,
        },
      })
      return { status, stdout: stdout.toString(), stderr }
    }
    const here = (code: string) => code.replace(/^postgres=.*$/m, 'postgres=')
    const backup = here(executed('docs/operations/imds-api.md', 'backup'))
    const restore = here(executed('docs/operations/imds-api.md', 'restore'))
    t.match(await shell('createuser --superuser postgres && createdb --owner imds imds', { PGUSER: 'imds' }), {
      status: 0,
    })
    t.match(await shell('psql --command "alter role imds nosuperuser nocreatedb nocreaterole" postgres'), { status: 0 })
    const api = await startImdsApi(t, { IMDS_API_DATABASE: postgres.url.replace(/postgres$/, 'imds') })
    const token = await api.token(CLIENT_OF[ONE])
    const create = async () => (await api.call('POST', 'servers', { image: 'img-deb12' })).body as { id: string }
    const kept = await create()
    const statusOf = async (id: string) => ((await api.call('GET', `servers/${id}`)).body as { status: string }).status
    await until(async () => (await statusOf(kept.id)) === 'active', 'the server to be published before its backup')
    const dump = join(postgres.directory, 'region.dump')
    writeFileSync(dump, 'older')
    t.not((await shell(backup, { PGUSER: 'nobody-else' })).status, 0)
    t.equal(readFileSync(dump, 'utf8'), 'older', 'a backup that fails leaves the older one')
    t.match(await shell(backup), { status: 0, stderr: '' })
    const later = await create()
    const store = await openTestStore(t, { url: api.env['IMDS_STORE']! })
    await until(async () => (await store.get(later.id)) !== undefined, 'the later server to be published')
    await until(async () => ((await store.fleet.numbers()).get('ids_srv') ?? 0) > 1, 'the store to remember its number')
    const before = await store.fleet.database()
    t.equal(await api.stop(), 0)

    t.match(await shell(restore, api.env), { status: 1, stdout: '', stderr: /database "imds" already exists/ })
    t.match(await shell('dropdb imds && cp region.dump whole.dump'), { status: 0 })
    truncateSync(dump, Math.floor(readFileSync(dump).length / 2))
    t.match(await shell(restore, api.env), { status: 1, stdout: '', stderr: /^pg_restore: error/m })
    t.match(await shell('psql --tuples-only --command "\\dt" imds'), { stderr: /Did not find any relations/ })
    t.match(await shell('dropdb imds && mv whole.dump region.dump'), { status: 0 })
    t.match(await shell(restore, { ...api.env, IMDS_STORE: 'redis://127.0.0.1:1', IMDS_REGION: 'gb1' }), {
      status: 69,
      stdout: '',
      stderr: /^imds-api: cannot use the store: /,
    })
    t.equal(await store.fleet.database(), before, 'the store is as it was')
    t.match(await shell('dropdb imds'), { status: 0 })

    const asSuperuser =
      'createdb --owner=imds imds && pg_restore --no-owner --dbname=imds region.dump && imds-api --check'
    t.match(
      await shell(asSuperuser, api.env),
      { status: 1, stderr: /permission denied for table .*createdb --owner and pg_restore --role/ },
      'tables of another user: the message names the remedy',
    )
    t.match(await shell('dropdb imds && createdb imds && imds-api --check', api.env), {
      status: 1,
      stdout: /^missing: /,
    })
    t.match(await shell('imds-api reconcile', api.env), {
      status: 1,
      stderr: /permission denied for schema public: .*alter database NAME owner to USER/,
    })
    t.match(await shell('dropdb imds'), { status: 0 })

    const { status, stdout } = await shell(restore, api.env)
    t.equal(status, 0)
    t.match(stdout, `${later.id}, of ${ONE}, is only in the store: `)
    t.match(stdout, /\npublished \d servers\n$/)
    t.not(await store.fleet.database(), before, 'the former database is refused from now on')
    const again = await startProcess(t, api.env)
    const found = (bearer: string) => ask(again.baseUrl, bearer, 'GET', `servers/${kept.id}`)
    t.match(await found(token), { status: 401 }, 'tokens are not restored')
    t.match(await found(await again.token(CLIENT_OF[ONE])), { status: 200, body: { id: kept.id } })
    t.equal(await again.stop(), 0)
  },
)
