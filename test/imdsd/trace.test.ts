/** `imdsctl trace`, and the durations of boots: what a guest asked for when it booted. */
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

t.test('H10: imdsctl trace and explain show what a guest asked for, without secrets', async (t) => {
  const { daemon, store } = await startServing(t, () => Promise.resolve())
  await store.put(aLocalInstance(1, 1, { id: 'srv-a' }), Buffer.from('a-secret'))
  await until(async () => (await daemon.operator('/instances/srv-a')).status === 200, 'the instance')

  const run = (...args: string[]) => imdsctl([...args, '--operator', daemon.operatorSocket])
  t.match(await run('trace', 'srv-a'), { status: 0, stdout: /its guest has sent no request/ }, 'before the boot')

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

  const shown = await run('trace', 'srv-a')
  t.match(shown, {
    status: 0,
    stdout: /^srv-a, revision 1, published at 2.*\nbooted at 2.*: 7 requests, 5 with a session/,
  })
  t.match(shown.stdout, /^user agent "Cloud-Init\/25\.1"\nuser agent "evil \\u009b2J \\"agent\\""$/m)
  for (const line of [
    /^ *\+0\.000 s {2}token +1 request, served$/m,
    /s {2}meta-data\/ +1 request, served$/m,
    /s {2}placement +1 request, 0 served$/m,
    /s {2}user-data +2 requests, 1 served/m,
    /s {2}403 forwarded +1 request refused/m,
    /s {2}404 not-found +1 request refused/m,
  ])
    t.match(shown.stdout, line)
  const json = await run('--json', 'trace', 'srv-a')
  t.match(JSON.parse(json.stdout), { id: 'srv-a', boot: { recognised: true, requests: 7 }, recent: [{ status: 403 }] })
  const explained = await run('explain', '127.0.0.1')
  t.match(
    explained.stdout,
    /^request +\d+ s ago: 403, forwarded \(user-data\)\nrequest +\d+ s ago: 200, served \(user-data\)/m,
  )
  for (const { stdout: text } of [shown, json, explained]) {
    t.notOk(text.includes(token) || text.includes('secret') || text.includes('AAAAC3'), 'no secret, and no path')
    t.notMatch(text, /[\u0080-\u009f]/)
  }

  t.equal(await daemon.metric('imds_boot_duration_seconds_count{phase="first-request"}'), 1)
  const socket = connect(port, '127.0.0.1', () => socket.end('nonsense\r\n\r\n'))
  await once(socket.resume(), 'close')
  const unreadable = JSON.parse((await run('--json', 'trace', 'srv-a')).stdout) as unknown
  t.match(unreadable, { boot: { requests: 8 }, recent: [{ status: 400, reason: 'malformed-request' }] })
  t.match(await run('trace', 'srv-b'), { status: 1, stderr: /does not serve srv-b: ask on the hypervisor/ })
  t.match(await run('trace', '../x'), { status: 64, stderr: /"\.\.\/x" is not/ })
})
