import { once } from 'node:events'
import { connect, createServer, Socket, type AddressInfo } from 'node:net'
import { expect, test } from 'vitest'
import { LIMITED_DSCP, limitHops } from '../../../../src/imdsd/guest/hop-limit.ts'

test.each(['127.0.0.1', '::1'])('D6: a connection to %s is marked', async (host) => {
  const server = createServer().listen(0, host)
  await once(server, 'listening')
  const client = connect((server.address() as AddressInfo).port, host)
  const [socket] = (await once(server, 'connection')) as [Socket]
  expect(limitHops(socket)).toBe(true)
  expect(socket.getTypeOfService()).toBe(LIMITED_DSCP << 2)
  client.destroy()
  socket.destroy()
  server.close()
})

test('D6: a connection that cannot be marked is reported', () => {
  const connection = new Socket()
  connection.setTypeOfService = () => {
    throw new Error('EPERM')
  }
  expect(limitHops(connection)).toBe(false)
})
