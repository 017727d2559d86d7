/**
 * Replies that no Redis sends at that moment, as from a broken proxy or another kind of server, on each connection of the
 * daemon: it closes the connection and makes it again, and guests are served meanwhile.
 */
import { createServer, connect, type Socket } from 'node:net'
import { once } from 'node:events'
import t, { type Test } from 'tap'
import { freePort, startRedis } from '../support/redis/redis.ts'
import { until } from '../support/programs/daemon.ts'
import { aDaemon, aStore, hostnameOf, publish, serves } from '../support/redis/shapes.ts'

/** One of each type of RESP2 and RESP3, with the empty and the absent forms. */
const REPLIES = [
  ':1\r\n',
  ':-1\r\n',
  '$-1\r\n',
  '$0\r\n\r\n',
  '$7\r\nmessage\r\n',
  '+OK\r\n',
  '-ERR x\r\n',
  '*0\r\n',
  '*-1\r\n',
  '*1\r\n*0\r\n',
  '*1\r\n_\r\n',
  '_\r\n',
  '#t\r\n',
  ',1.5\r\n',
  '(12345678901234567890\r\n',
  '$-7\r\n',
  '~1\r\n+a\r\n',
  '~0\r\n',
  '%1\r\n+a\r\n:1\r\n',
  '%0\r\n',
  '=5\r\ntxt:a\r\n',
  '!5\r\nERR x\r\n',
  '|1\r\n+a\r\n:1\r\n:2\r\n',
  '>0\r\n',
  '>1\r\n_\r\n',
  '>1\r\n$7\r\nmessage\r\n',
  '>1\r\n$9\r\nsubscribe\r\n',
  '>3\r\n$11\r\nunsubscribe\r\n_\r\n:0\r\n',
  'HTTP/1.1 400 Bad Request\r\n\r\n',
] as const

/** A proxy before a server. `answer`: what is sent in place of the server's reply to a command, by its name. */
async function startProxy(t: Test, port: number) {
  const open = new Map<Socket, { isNotices: boolean }>()
  const answers = new Map<string, string>()
  const proxy = createServer((client) => {
    const server = connect(port, '127.0.0.1')
    const state = { isNotices: false }
    open.set(client, state)
    client.on('data', (bytes) => {
      const text = bytes.toString('latin1')
      if (text.includes('imds-notices')) state.isNotices = true
      const [, answer] = [...answers].find(([command]) => text.includes(`\r\n${command}\r\n`)) ?? []
      if (answer === undefined) server.write(bytes)
      else client.write(answer)
    })
    server.on('data', (bytes) => client.write(bytes))
    for (const [end, other] of [
      [client, server],
      [server, client],
    ] as const) {
      end.on('error', () => undefined)
      end.on('close', () => {
        open.delete(client)
        other.destroy()
      })
    }
  })
  const own = await freePort()
  proxy.listen(own, '127.0.0.1')
  await once(proxy, 'listening')
  t.teardown(() => {
    proxy.close()
    for (const socket of open.keys()) socket.destroy()
  })
  return {
    url: `redis://127.0.0.1:${own}`,
    answers,
    /** Sends bytes to the daemon on each connection of a kind. Returns how many there were. */
    send: (isNotices: boolean, bytes: string) => {
      const sockets = [...open].filter(([, state]) => state.isNotices === isNotices)
      for (const [socket] of sockets) socket.write(bytes, 'latin1')
      return sockets.length
    },
    reset: () => {
      for (const socket of open.keys()) socket.destroy()
    },
  }
}

t.test('an unexpected reply of any type closes the connection, which is made again; guests are served', async (t) => {
  const redis = await startRedis(t)
  const proxy = await startProxy(t, redis.port)
  const store = await aStore(t, redis.url)
  let revision = 1
  await publish(store, revision)
  const daemon = await aDaemon(t, proxy.url)
  await serves(daemon, revision)
  const isConnected = async () => (await daemon.condition('store-lost')) === undefined
  const isWell = async (what: string) => {
    t.equal(daemon.process.exitCode, null, what)
    t.match(await hostnameOf(daemon), `r${revision}.n1`, what)
    await until(isConnected, `the store after ${what}`)
    await publish(store, ++revision)
    await serves(daemon, revision)
  }
  for (const isNotices of [true, false])
    await t.test(`${isNotices ? 'the connection of notices' : 'that of commands'}, without a question`, async (t) => {
      for (const reply of REPLIES) {
        await until(isConnected, 'the store')
        t.equal(proxy.send(isNotices, reply), 1)
        await isWell(JSON.stringify(reply))
      }
    })
  for (const command of ['subscribe', 'hgetall'])
    await t.test(`in place of the reply to ${command}`, async (t) => {
      for (const reply of REPLIES) {
        proxy.answers.set(command, reply)
        proxy.reset()
        await until(async () => !(await isConnected()), 'the loss').catch(() => undefined)
        t.equal(daemon.process.exitCode, null, JSON.stringify(reply))
        t.match(await hostnameOf(daemon), `r${revision}.n1`)
        proxy.answers.clear()
        proxy.reset()
        await isWell(JSON.stringify(reply))
      }
    })
})
