import { EventEmitter } from 'node:events'
import { expect, test } from 'vitest'
import { StopDelay } from '../../../../src/imds-api/service/stop-delay.ts'

test('only once it has begun, responses end their connections', async () => {
  const server = new EventEmitter()
  const delay = new StopDelay()
  delay.watch({ server } as never)
  const headersOf = () => {
    const headers: Record<string, string> = {}
    server.emit('request', {}, { setHeader: (name: string, value: string) => (headers[name] = value) })
    return headers
  }
  expect([delay.hasBegun, headersOf()]).toEqual([false, {}])
  await delay.run(0)
  expect([delay.hasBegun, headersOf()]).toEqual([true, { Connection: 'close' }])
})
