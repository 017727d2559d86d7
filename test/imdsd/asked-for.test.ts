/** What a guest has asked for, as `imdsctl explain` prints it. */
import t from 'tap'
import { once } from 'node:events'
import { request as httpRequest } from 'node:http'
import { connect } from 'node:net'
import { until } from '../support/programs/daemon.ts'
import { aLocalInstance } from '../support/fixtures/instance.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'
import { startServing } from '../support/programs/served.ts'

/** Sends a request with a header of the test, and resolves with the body of the response. */
async function ask(port: number, path: string, method = 'GET', headers: Record<string, string> = {}): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>()
  const options = { host: '127.0.0.1', port, path, method, headers, agent: false }
  httpRequest(options, (response) => {
    let body = ''
    response.setEncoding('latin1').on('data', (text: string) => (body += text))
    response.on('end', () => resolve(body))
  })
    .on('error', reject)
    .end()
  return promise
}

t.test('H10: imdsctl explain shows what a guest has asked for, without secrets', async (t) => {
  const { daemon, store } = await startServing(t, () => Promise.resolve())
  await store.put(aLocalInstance(1, 1, { id: 'srv-a' }), Buffer.from('a-secret'))
  await until(async () => (await daemon.operator('/instances/srv-a')).status === 200, 'the instance')

  const run = (...args: string[]) => imdsctl([...args, '--operator', daemon.operatorSocket])
  t.match((await run('explain', 'srv-a')).stdout, /^request +none since the daemon started/m, 'before the boot')

  const port = daemon.guestPort
  const token = await ask(port, '/latest/api/token', 'PUT', {
    'x-aws-ec2-metadata-token-ttl-seconds': '60',
    'user-agent': 'Cloud-Init/25.1',
  })
  const headers = { 'x-aws-ec2-metadata-token': token, 'user-agent': 'evil \u009b2J "agent"' }
  for (const path of ['instance-id', '', 'public-keys/0/openssh-key', 'placement/secret-path'])
    await ask(port, `/latest/meta-data/${path}`, 'GET', headers)
  t.equal(await ask(port, '/latest/user-data', 'GET', headers), 'a-secret')
  await ask(port, '/latest/user-data', 'GET', { ...headers, 'x-forwarded-for': '10.0.0.9' })

  const shown = await run('explain', 'srv-a')
  t.match(shown, { status: 0 })
  for (const line of [
    /^request +token, \d s ago: 200 served; 1 in all; "Cloud-Init\/25\.1"$/m,
    /^request +meta-data\/, \d s ago: 200 served; 1 in all; "evil \\u009b2J \\"agent\\""$/m,
    /^request +placement, \d s ago: 404 not-found; 1 in all/m,
    /^request +user-data, \d s ago: 403 forwarded; 2 in all/m,
  ])
    t.match(shown.stdout, line)
  const json = await run('--json', 'explain', '127.0.0.1')
  t.match(JSON.parse(json.stdout), { requests: [{ topic: 'user-data', status: 403, reason: 'forwarded', count: 2 }] })
  for (const { stdout: text } of [shown, json]) {
    t.notOk(text.includes(token) || text.includes('secret') || text.includes('AAAAC3'), 'no secret, and no path')
    t.notMatch(text, /[\u0080-\u009f]/)
  }

  const socket = connect(port, '127.0.0.1', () => socket.end('nonsense\r\n\r\n'))
  await once(socket.resume(), 'close')
  const unreadable = JSON.parse((await run('--json', 'explain', 'srv-a')).stdout) as unknown
  t.match(unreadable, { requests: [{ topic: 'other', status: 400, reason: 'malformed-request' }] })
})
