/** What deploy/haproxy.cfg bounds for imds-api: the connections of an address, idle ones, and unread responses. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import { connect, type AddressInfo, type Server } from 'node:net'
import { join } from 'node:path'
import { connect as connectTls } from 'node:tls'
import t from 'tap'
import { without } from '../support/packages.ts'
import { until } from '../support/programs/daemon.ts'
import { freePort } from '../support/redis/redis.ts'
import { anAuthority } from '../support/redis/tls.ts'
import { shortDirectory } from '../support/test-directory.ts'

const CONFIG = readFileSync(new URL('../../deploy/haproxy.cfg', import.meta.url), 'utf8')
const REQUESTS = 500
const REQUEST = 'GET / HTTP/1.1\r\nHost: a\r\n\r\n'

t.test('HAProxy bounds connections', { skip: without('haproxy') }, async (t) => {
  const directory = shortDirectory(t)
  const authority = await anAuthority(directory, 'authority')
  const { certFile, keyFile } = await authority.issue('api')
  const [cert, key, ca] = [certFile, keyFile, authority.caFile].map((path) => readFileSync(path, 'utf8')) as [
    string,
    string,
    string,
  ]
  const listening = async (server: Server) => {
    await once(server.listen(0, '127.0.0.1'), 'listening')
    t.teardown(() => server.close())
    return String((server.address() as AddressInfo).port)
  }
  const body = 'x'.repeat(100_000)
  const api = await listening(createTlsServer({ cert, key }, (_request, response) => response.end(body)))
  const operators = await listening(createServer((_request, response) => response.end()))
  const [port, stats] = [await freePort(), join(directory, 'stats')]
  writeFileSync(join(directory, 'api.pem'), cert + key)
  const file = join(directory, 'haproxy.cfg')
  let config = CONFIG
  for (const [text, here] of [
    ['user haproxy', `user haproxy\n    stats socket ${stats}`],
    ['timeout http-request 30s', 'timeout http-request 5s'],
    ['timeout client 130s', 'timeout client 2s'],
    [':443', `127.0.0.1:${port}`],
    ['/etc/haproxy/api.pem', join(directory, 'api.pem')],
    ['/etc/haproxy/imds-api-ca.pem', authority.caFile],
    ['9170', operators],
    ['8170', api],
    ['10.1.0.10', '127.0.0.1'],
    ['10.1.0.11', '127.0.0.1'],
  ] as const) {
    t.ok(config.includes(text), text)
    config = config.replaceAll(text, here)
  }
  if (process.getuid?.() !== 0) config = config.replaceAll(/^ +(?:user|group) haproxy$/gm, '')
  writeFileSync(file, config)
  const proxy = spawn('haproxy', ['-db', '-q', '-f', file], { stdio: ['ignore', 'ignore', 'inherit'] })
  t.teardown(() => proxy.kill('SIGTERM'))
  const open = (localAddress: string) => connect({ host: '127.0.0.1', port, localAddress }).on('error', () => undefined)
  const session = (localAddress: string) =>
    connectTls({ socket: open(localAddress), ca, checkServerIdentity: () => undefined })
      .on('error', () => undefined)
      .setEncoding('latin1')
  const connectionsOf = async (address: string) => {
    const asked = connect(stats).setEncoding('latin1')
    asked.end(`show table clients key ::ffff:${address}\n`)
    return Number(/conn_cur=(\d+)/.exec((await asked.toArray()).join(''))?.[1] ?? 0)
  }
  const isServed = async () => {
    const socket = session('127.0.0.2')
    socket.write(REQUEST)
    const [text = ''] = await Promise.race([once(socket, 'data'), once(socket, 'close')]).catch(() => [])
    socket.destroy()
    return String(text).startsWith('HTTP/1.1 200 ')
  }
  await until(isServed, 'HAProxy to serve')

  const idle = Array.from({ length: 256 }, () => open('127.0.0.4').resume())
  await until(async () => (await connectionsOf('127.0.0.4')) === 256, 'the connections')
  const refused = open('127.0.0.4').resume()
  await until(() => refused.closed, 'the 257th connection to be reset')
  t.equal(idle.filter(({ closed }) => closed).length, 0)
  const unread = session('127.0.0.5').pause()
  unread.write(REQUEST.repeat(REQUESTS))
  await until(async () => (await connectionsOf('127.0.0.5')) === 1, 'another address to connect')
  await until(() => idle.every(({ closed }) => closed), 'those that send no request to end')
  await until(async () => (await connectionsOf('127.0.0.5')) === 0, 'the unread response to end')
  let bytes = 0
  unread.on('data', (text: string) => (bytes += text.length)).resume()
  await until(() => unread.closed, 'the end of what was sent')
  t.ok(bytes < REQUESTS * body.length)
})
