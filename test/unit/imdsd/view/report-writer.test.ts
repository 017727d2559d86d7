/** The order of its writes. test/redis/reports.test.ts has them with a real store. */
import { expect, test, vi } from 'vitest'
import { NO_REPORTS } from '../../../../src/metadata/reports.ts'
import { ReportWriter } from '../../../../src/imdsd/view/report-writer.ts'
import type { ServedInstance } from '../../../../src/imdsd/view/served-instance.ts'

const served = (id: string) =>
  ({ instance: { id, hypervisors: ['hv1'], options: { reports: 'enabled' } }, stay: {} }) as unknown as ServedInstance

/** Lets that many steps of promises pass. */
async function steps(count: number): Promise<void> {
  for (let n = 0; n < count; n++) await Promise.resolve()
}

test.each(Array.from({ length: 12 }, (_, n) => n))(
  'H9: a report that comes %i steps of promises after the last write is written too',
  async (later) => {
    const instances = new Map(['srv-a', 'srv-b'].map((id) => [id, served(id)]))
    const saved: string[] = []
    const writer = new ReportWriter({
      store: {
        load: () => Promise.resolve([]),
        save: (id) => {
          saved.push(id)
          if (id === 'srv-a') void steps(later).then(() => writer.noteReport('srv-b'))
          return Promise.resolve()
        },
        remove: () => Promise.resolve(),
      },
      hypervisor: 'hv1',
      find: (id) => instances.get(id),
      reports: { of: () => NO_REPORTS, merge: () => NO_REPORTS },
      instances: () => [],
      writes: { inc: () => undefined },
      retryMs: 1,
    })
    writer.noteReport('srv-a')
    await vi.waitFor(() => expect(saved).toEqual(['srv-a', 'srv-b']))
    await writer.stop()
  },
)

test('H9: a removal that always fails does not keep other reports from being written', async () => {
  const instances = new Map(['srv-a', 'srv-b'].map((id) => [id, served(id)]))
  const saved: string[] = []
  const writer = new ReportWriter({
    store: {
      load: () => Promise.resolve([]),
      save: (id) => {
        saved.push(id)
        return Promise.resolve()
      },
      remove: () => Promise.reject(new Error('NOPERM')),
    },
    hypervisor: 'hv1',
    find: (id) => instances.get(id),
    reports: { of: () => NO_REPORTS, merge: () => NO_REPORTS },
    instances: () => instances.values(),
    writes: { inc: () => undefined },
    retryMs: 1,
  })
  instances.delete('srv-a')
  writer.noteChange('srv-a')
  for (let n = 1; n <= 2; n++) {
    writer.noteReport('srv-b')
    await vi.waitFor(() => expect(saved).toHaveLength(n))
  }
  expect(writer.failure).toBe('NOPERM')
  await writer.stop()
})

test('H9: after a loss of the store all reports are written again', async () => {
  const instances = new Map(['srv-a', 'srv-b', 'srv-c'].map((id) => [id, served(id)]))
  const saved: string[] = []
  const writer = new ReportWriter({
    store: {
      load: () => Promise.resolve([]),
      save: (id) => Promise.resolve(void saved.push(id)),
      remove: () => Promise.resolve(),
    },
    hypervisor: 'hv1',
    find: (id) => instances.get(id),
    reports: {
      of: ({ instance }) => (instance.id === 'srv-c' ? undefined : NO_REPORTS),
      merge: () => NO_REPORTS,
    },
    instances: () => instances.values(),
    writes: { inc: () => undefined },
    retryMs: 1,
  })
  writer.writeAll()
  writer.wake()
  await vi.waitFor(() => expect(saved).toEqual(['srv-a', 'srv-b']))
  writer.wake()
  await writer.stop()
  expect(saved).toEqual(['srv-a', 'srv-b'])
})

test('H9: what a guest reported before its instance left and came back is not saved for the new one', async () => {
  const [before, after] = [served('srv-a'), served('srv-a')]
  let current = before
  const saved: string[] = []
  const writer = new ReportWriter({
    store: {
      load: () => {
        current = after // while its stored reports are read
        return Promise.resolve([])
      },
      save: (id) => Promise.resolve(void saved.push(id)),
      remove: () => Promise.resolve(),
    },
    hypervisor: 'hv1',
    find: () => current,
    reports: { of: (one) => (one === before ? NO_REPORTS : undefined), merge: () => NO_REPORTS },
    instances: () => [],
    writes: { inc: () => undefined },
    retryMs: 1,
  })
  writer.noteReport('srv-a')
  await steps(20)
  await writer.stop()
  expect(saved).toEqual([])
})
