import { pino } from 'pino'
import { afterEach, expect, test, vi } from 'vitest'
import { parseConfig } from '../../../src/imdsd/config.ts'
import { startDaemon } from '../../../src/imdsd/daemon.ts'
import { prepareDemo } from '../../../src/imdsd/demo.ts'
import { Shares } from '../../../src/imdsd/guest/share.ts'
import { Persistence } from '../../../src/imdsd/journal/persistence.ts'
import { OperatorListener } from '../../../src/imdsd/operator/listener.ts'
import { Sync } from '../../../src/imdsd/view/sync.ts'

afterEach(() => {
  vi.restoreAllMocks()
  vi.useRealTimers()
})

async function aDaemon() {
  const listen = '127.0.0.1:0,other=127.0.0.1:0'
  const demo = await prepareDemo({ IMDS_LISTEN: listen, IMDS_OPERATOR_LISTEN: '127.0.0.1:0' })
  const config = parseConfig(demo.env)
  if (!config.ok) throw new Error(JSON.stringify(config.faults))
  const log = pino({ level: 'silent' })
  const daemon = await startDaemon(config.value, log)
  return { daemon, demo }
}

test('a stop ends sync and the files of the view also if a listener cannot stop, and then rejects', async () => {
  const { daemon, demo } = await aDaemon()
  const ends = [vi.spyOn(Sync.prototype, 'stop'), vi.spyOn(Persistence.prototype, 'stop')]
  const { stop } = OperatorListener.prototype
  vi.spyOn(OperatorListener.prototype, 'stop').mockImplementation(async function (this: OperatorListener<never>) {
    await stop.call(this)
    throw new Error('it hangs')
  })
  await expect(daemon.stop()).rejects.toThrow('it hangs')
  for (const end of ends) expect(end).toHaveBeenCalledOnce()
  demo.clean()
})

test('the shares of all listeners are swept once in each interval', async () => {
  vi.useFakeTimers({ toFake: ['setInterval'] })
  const sweep = vi.spyOn(Shares.prototype, 'sweep')
  const { daemon, demo } = await aDaemon()
  vi.advanceTimersByTime(500)
  expect(sweep).toHaveBeenCalledOnce()
  await daemon.stop()
  demo.clean()
})
