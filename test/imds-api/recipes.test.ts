/**
 * The recipes of docs/api-recipes.md, executed in one shell as a reader does, through a proxy that cuts the connection
 * after the first response to each key: the change is made, and nobody knows.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, request as send } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { aRegion, ONE, secretOf } from '../support/fixtures/region.ts'
import { anApi, basic, type TestApi } from '../support/programs/api.ts'
import { executed } from '../tools/documents.ts'

const CLIENT = 'cli-3d0kz'
const SECRET_FILE = 'provisioning.secret'
const FIRST_SECRET = secretOf('provisioning')
const RECIPES = {
  change: executed('docs/api-recipes.md', 'change'),
  create: executed('docs/api-recipes.md', 'create'),
  events: executed('docs/api-recipes.md', 'events'),
  follow: executed('docs/api-recipes.md', 'follow'),
  rotate: executed('docs/api-recipes.md', 'rotate'),
  front: executed('docs/api-recipes.md', 'front'),
  deploy: executed('docs/api-recipes.md', 'deploy'),
}
const GRANT = { grant_type: 'client_credentials' }

/** Starts a proxy to an API that cuts the first response to each key. Returns its port. */
async function startCuttingProxy(t: Test, api: TestApi): Promise<number> {
  await api.server.listen({ host: '127.0.0.1', port: 0 })
  const { port } = api.server.server.address() as AddressInfo
  const keys = new Set<string>()
  const proxy = createServer((incoming, outgoing) => {
    const { method, url: path, headers } = incoming
    const key = headers['idempotency-key']
    incoming.pipe(
      send({ host: '127.0.0.1', port, method, path, headers }, (response) => {
        if (typeof key === 'string' && !keys.has(key)) {
          keys.add(key)
          incoming.socket.destroy()
          return
        }
        outgoing.writeHead(response.statusCode!, response.headers)
        response.pipe(outgoing)
      }),
    )
  })
  proxy.listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  t.teardown(() => {
    proxy.closeAllConnections()
    proxy.close()
  })
  return (proxy.address() as AddressInfo).port
}

t.test('the recipes work as written, while the first response to each change is lost', async (t) => {
  const [client] = aRegion().api_clients
  const region = aRegion({
    api_clients: [{ id: CLIENT, account: ONE, name: client!.name, secret_file: SECRET_FILE }],
  })
  const api = await anApi(t, { region })
  await api.startPublisher()
  const port = await startCuttingProxy(t, api)
  const directory = mkdtempSync(join(tmpdir(), 'imds-recipes-'))
  t.teardown(() => {
    rmSync(directory, { recursive: true })
  })
  chmodSync(directory, 0o700)
  writeFileSync(join(directory, SECRET_FILE), `${FIRST_SECRET}\n`)

  /** Runs the functions and a script in a shell; returns what it prints. */
  const run = async (...scripts: string[]) => {
    const child = spawn(
      'bash',
      ['-euc', [RECIPES.change, `url=http://127.0.0.1:${String(port)}`, ...scripts].join('\n')],
      {
        cwd: directory,
        stdio: ['ignore', 'pipe', 'pipe'],
      },
    )
    const [output, errors] = await Promise.all([child.stdout.toArray(), child.stderr.toArray(), once(child, 'close')])
    const text = (chunks: unknown[]) => Buffer.concat(chunks as Buffer[]).toString()
    return { status: child.exitCode, output: text(output), errors: text(errors) }
  }
  /** The names of the active servers. */
  const active = async () => {
    const rows = api.database.db.selectFrom('servers').select('name').where('status', '=', 'active').orderBy('name')
    return (await rows.execute()).map(({ name }) => name)
  }
  const secret = () => readFileSync(join(directory, SECRET_FILE), 'utf8').trim()
  const tokenWith = (given: string) =>
    api.server.inject({
      method: 'POST',
      url: '/token',
      headers: { authorization: basic(CLIENT, given) },
      payload: GRANT,
    })

  await t.test('a job that is started again creates no second server', async (t) => {
    const first = await run(RECIPES.create, 'echo $server')
    t.match(first, { status: 0, errors: '', output: /^srv-\w{5}\n$/ })
    t.same(await run(RECIPES.create, 'echo $server'), first)
    t.same(await active(), ['web'])
  })

  await t.test('each event is handled once and in order, also after a handler that was interrupted', async (t) => {
    const { status, output, errors } = await run(
      'sign_in',
      RECIPES.events,
      RECIPES.follow,
      'change watched/name PUT /server_groups/$group \'{"name": "other"}\' > /dev/null',
      'change watched/end DELETE /server_groups/$group > /dev/null',
      'interrupted=$(handle() { case $1 in *\\"delete\\"*) return 1 ;; *) echo handled ;; esac; }; follow || echo interrupted)',
      'echo $interrupted',
      'follow',
      'follow',
    )
    t.match({ status, errors }, { status: 0, errors: '' })
    t.match(
      output,
      /^create server_group (grp-\w{5})\n(?:update account acc-one01\n)?handled (?:handled )?interrupted\ndelete server_group \1\n/,
    )
  })

  await t.test('a secret is rotated once; one that is lost on the way leaves the present one valid', async (t) => {
    const lost = await run('sign_in', RECIPES.rotate)
    t.not(lost.status, 0)
    t.equal(secret(), FIRST_SECRET)
    t.equal((await tokenWith(secret())).statusCode, 200)
    const again = RECIPES.rotate.replace('$(date +%F)', 'again')
    t.match(await run('token=expired', again), { status: 0, errors: '' }, 'and an expired access token is replaced')
    t.not(secret(), FIRST_SECRET)
    t.equal((await tokenWith(secret())).statusCode, 200)
  })

  await t.test(
    'a deployment replaces the servers of a group once, and none that somebody else has changed',
    async (t) => {
      const changed = 'wait_for() { change other PUT /server_groups/$front \'{"name": "theirs"}\' > /dev/null; }'
      const { status, errors } = await run(
        'sign_in',
        RECIPES.front,
        RECIPES.deploy,
        'deploy 1.1 2',
        changed,
        'deploy 1.2 1',
      )
      t.match({ status, errors }, { status: 1, errors: /add_servers: 412 / })
      t.same(await active(), ['web', 'web-1.1-1', 'web-1.1-2', 'web-1.2-1'])
      const { output } = await run('sign_in', 'get /cloud_ips')
      t.match(JSON.parse(output), [{ status: 'mapped', server_group: { name: 'theirs' } }])
    },
  )
})
