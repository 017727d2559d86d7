import { expect, test, vi } from 'vitest'
import { HypervisorCheck } from '../../../../src/imds-api/publish/hypervisor-check.ts'

test('imds-api is announced with the hypervisors that are drained', async () => {
  const announced: unknown[] = []
  const check = new HypervisorCheck({
    hypervisors: () =>
      Promise.resolve([
        { name: 'hv1', drained_at: null },
        { name: 'hv2', drained_at: new Date('2026-11-23T09:00:00Z') },
      ]),
    announce: (drained) => Promise.resolve(void announced.push(Object.fromEntries(drained))),
    log: { debug: () => undefined },
  })
  check.start()
  await vi.waitFor(() => expect(announced).toEqual([{ hv2: '2026-11-23T09:00:00.000Z' }]))
  await check.stop()
})
