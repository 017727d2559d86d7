/** The audit lines: who changed what. */
import { execFileSync } from 'node:child_process'
import {
  closeSync,
  constants,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import t from 'tap'
import { ADA, CLIENT_OF, ONE, TWO } from '../support/fixtures/region.ts'
import { anApi, startImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { testDirectory } from '../support/test-directory.ts'

const SECRET = 'c2VjcmV0IHVzZXItZGF0YQ=='

t.test('a change leaves one line with who changed what, and no values', async (t) => {
  const { audit, call } = await anApi(t)
  const { headers, body } = await call('POST', '/1.0/servers', {
    image: 'img-deb12',
    name: 'private',
    user_data: SECRET,
    unknown: 1,
  })
  const { id } = body as { id: string }
  const line = {
    client: CLIENT_OF[ONE],
    account: ONE,
    address: '127.0.0.1',
    method: 'POST',
    route: '/1.0/servers',
    id,
    set: ['image', 'name', 'user_data'],
    request_id: headers['x-request-id'],
  }
  const [{ time, ...first } = {}, ...others] = audit
  t.strictSame([first, others], [line, []])
  t.ok(Date.parse(String(time)) > 0)
  await call('PUT', `/1.0/servers/${id}/lock_resource`)
  await call('PUT', `/1.0/servers/${id}?token=private`, { name: 'private' })
  t.match(audit.slice(1), [
    { method: 'PUT', route: '/1.0/servers/:id/lock_resource', id, set: undefined },
    { method: 'PUT', route: '/1.0/servers/:id', id, set: ['name'] },
  ])
  t.notMatch(JSON.stringify(audit), new RegExp(`${SECRET}|private|Bearer`))
})

t.test('a request that reads, or that was refused, leaves no line', async (t) => {
  const { audit, call, callWith } = await anApi(t)
  await call('GET', '/1.0/servers')
  t.equal((await call('POST', '/1.0/servers', {})).status, 422)
  t.equal((await call('DELETE', '/1.0/cloud_ips/cip-none1')).status, 404)
  t.equal((await callWith('wrong', 'POST', '/1.0/cloud_ips')).status, 401)
  t.equal((await call('POST', '/1.0/load_balancers', {})).status, 501)
  t.strictSame(audit, [])
})

t.test('the line of a user names the user, the application and the account', async (t) => {
  const { audit, callWith, userToken } = await anApi(t)
  t.equal((await callWith(await userToken(ADA), 'POST', `/1.0/cloud_ips?account_id=${TWO}`)).status, 201)
  t.match(audit, [{ user: ADA, client: /^app-/, account: TWO, id: /^cip-/ }])
})

t.test('the lines are in IMDS_API_AUDIT_FILE before the response, and in a new file after SIGHUP', async (t) => {
  const directory = testDirectory(t)
  const file = join(directory, 'audit')
  const api = await startImdsApi(t, { IMDS_API_AUDIT_FILE: file })
  const authorization = `Bearer ${await api.token(CLIENT_OF[ONE])}`
  const create = async () =>
    (
      (await (await fetch(`${api.baseUrl}/1.0/cloud_ips`, { method: 'POST', headers: { authorization } })).json()) as {
        id: string
      }
    ).id
  const idsIn = (path: string) =>
    readFileSync(path, 'utf8')
      .trimEnd()
      .split('\n')
      .map((line) => (JSON.parse(line) as { id: string }).id)
  const first = await create()
  t.strictSame(idsIn(file), [first])
  t.equal(statSync(file).mode & 0o777, 0o600, 'only its owner reads it, whatever the umask')
  renameSync(file, join(dirname(file), 'audit.1'))
  api.process.kill('SIGHUP')
  await until(async () => {
    await create()
    return existsSync(file) && readFileSync(file, 'utf8') !== ''
  }, 'a line in the new file')
  t.equal(idsIn(join(directory, 'audit.1'))[0], first)
  t.equal(statSync(file).mode & 0o777, 0o600)
})

t.test('SIGUSR1 opens no debugger in imds-api', async (t) => {
  const path = join(testDirectory(t), 'stderr')
  const stderr = openSync(path, 'w')
  const api = await startImdsApi(t, {}, undefined, stderr)
  closeSync(stderr)
  api.process.kill('SIGUSR1')
  t.equal((await fetch(`${api.operatorUrl}/readyz`)).status, 200)
  t.equal(await api.stop(), 0)
  t.equal(readFileSync(path, 'utf8'), '', 'Node.js would print where its debugger listens')
})

t.test('after SIGHUP without a file to open, the lines go to the old one, and the log has the reason', async (t) => {
  const directory = join(testDirectory(t, { log: {} }), 'log')
  const api = await startImdsApi(t, { IMDS_API_AUDIT_FILE: join(directory, 'audit') })
  const authorization = `Bearer ${await api.token(CLIENT_OF[ONE])}`
  const create = async () =>
    (await fetch(`${api.baseUrl}/1.0/cloud_ips`, { method: 'POST', headers: { authorization } })).status
  const faults = () =>
    api.log.filter(({ msg }) => msg === 'the audit file cannot be opened again: lines are still written to the old one')
  const linesIn = (path: string) => readFileSync(path, 'utf8').trimEnd().split('\n').length
  t.equal(await create(), 201)
  renameSync(directory, `${directory}.1`)
  api.process.kill('SIGHUP')
  await until(() => faults().length === 1 || api.process.exitCode !== null, 'the error of the missing directory')
  t.match(faults(), [{ level: 'error', reason: /ENOENT/ }])
  t.equal(await create(), 201)
  t.equal(linesIn(join(`${directory}.1`, 'audit')), 2)
  mkdirSync(join(directory, 'audit'), { recursive: true })
  api.process.kill('SIGHUP')
  await until(() => faults().length === 2, 'the error of the directory in place of the file')
  t.match(faults()[1], { reason: /EISDIR/ })
  renameSync(directory, `${directory}.2`)
  mkdirSync(directory)
  api.process.kill('SIGHUP')
  await until(async () => {
    await create()
    return readFileSync(join(directory, 'audit'), { encoding: 'utf8', flag: 'a+' }) !== ''
  }, 'a line in the new file')
  await api.stop()
  t.strictSame(api.log.filter(({ level }) => level === 'error').length, 2, 'the old file is closed once')
})

t.test('a full disk stops no change, and the log says that lines wait', async (t) => {
  const api = await startImdsApi(t, { IMDS_API_AUDIT_FILE: '/dev/full' })
  const authorization = `Bearer ${await api.token(CLIENT_OF[ONE])}`
  for (let i = 0; i < 3; i++)
    t.equal((await fetch(`${api.baseUrl}/1.0/cloud_ips`, { method: 'POST', headers: { authorization } })).status, 201)
  t.match(
    api.log.filter(({ msg }) => msg.startsWith('an audit line cannot be written')),
    [{ level: 'error', reason: /ENOSPC/ }],
  )
})

t.test('lines that wait for a full disk are in the new file after SIGHUP, in their order', async (t) => {
  const file = join(testDirectory(t), 'audit')
  symlinkSync('/dev/full', file)
  const api = await startImdsApi(t, { IMDS_API_AUDIT_FILE: file })
  const authorization = `Bearer ${await api.token(CLIENT_OF[ONE])}`
  const create = async () =>
    (
      (await (await fetch(`${api.baseUrl}/1.0/cloud_ips`, { method: 'POST', headers: { authorization } })).json()) as {
        id: string
      }
    ).id
  const idsIn = (path: string) =>
    readFileSync(path, 'utf8')
      .trimEnd()
      .split('\n')
      .map((line) => (JSON.parse(line) as { id: string }).id)
  const ids = [await create(), await create(), await create()]
  rmSync(file)
  api.process.kill('SIGHUP')
  await until(() => existsSync(file) && readFileSync(file, 'utf8') !== '', 'the new file')
  ids.push(await create())
  t.strictSame(idsIn(file), ids)
})

t.test('a file that cannot be opened refuses the start, and names the variable', async (t) => {
  await t.rejects(
    startImdsApi(t, { IMDS_API_AUDIT_FILE: '/nonexistent/audit' }),
    /IMDS_API_AUDIT_FILE cannot be opened.*ENOENT/,
  )
})

t.test('while nobody reads standard error, changes are made, and their lines arrive once it is read', async (t) => {
  const fifo = join(testDirectory(t), 'stderr')
  execFileSync('mkfifo', [fifo])
  const fd = openSync(fifo, constants.O_RDWR | constants.O_NONBLOCK)
  t.teardown(() => {
    closeSync(fd)
  })
  const api = await startImdsApi(t, { IMDS_API_AUDIT_FILE: '' }, undefined, fd)
  const filler = Buffer.alloc(1 << 12, '\n')
  t.throws(
    () => {
      for (;;) writeSync(fd, filler)
    },
    { code: 'EAGAIN' },
    'the pipe is full',
  )
  const authorization = `Bearer ${await api.token(CLIENT_OF[ONE])}`
  const create = async () =>
    (
      (await (await fetch(`${api.baseUrl}/1.0/cloud_ips`, { method: 'POST', headers: { authorization } })).json()) as {
        id: string
      }
    ).id
  const ids = [await create(), await create(), await create()]
  let text = ''
  const read = () => {
    const chunk = Buffer.alloc(1 << 17)
    text += chunk.toString('utf8', 0, readSync(fd, chunk))
  }
  read()
  t.equal(await api.stop(), 0) // the lines are flushed at the exit
  read()
  t.strictSame(
    text
      .trim()
      .split('\n')
      .map((line) => (JSON.parse(line) as { id: string }).id),
    ids,
  )
})
