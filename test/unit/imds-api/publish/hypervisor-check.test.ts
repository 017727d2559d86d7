import { pino } from 'pino'
import { expect, test } from 'vitest'
import { HypervisorCheck } from '../../../../src/imds-api/publish/hypervisor-check.ts'

function aCheck(servers: Record<string, number>, announced: string[], drained: Record<string, Date> = {}) {
  const announcements: unknown[] = []
  const log: { hypervisors: unknown[]; all: number }[] = []
  const counts: number[] = []
  const check = new HypervisorCheck({
    hypervisors: () =>
      Promise.resolve(
        Object.entries(servers).map(([name, count]) => ({ name, servers: count, drained_at: drained[name] ?? null })),
      ),
    announce: (marks) => {
      announcements.push(Object.fromEntries(marks))
      return Promise.resolve()
    },
    unannounced: (names) => Promise.resolve(names.filter((name) => !announced.includes(name))),
    count: (count) => counts.push(count),
    log: pino(
      { level: 'warn' },
      {
        write: (line: string) => log.push(JSON.parse(line) as (typeof log)[0]),
      },
    ),
  })
  return { check, log, counts, announcements }
}

test('a hypervisor that no daemon announced is logged once, and again with its first server', async () => {
  const servers: Record<string, number> = { hv1: 3, hv2: 0 }
  const announced = ['hv1']
  const { check, log, counts } = aCheck(servers, announced)
  for (let i = 0; i < 2; i++) await check.check()
  expect(log).toMatchObject([{ hypervisors: [{ name: 'hv2', servers: 0 }], all: 1 }])
  servers['hv2'] = 1
  for (let i = 0; i < 2; i++) await check.check()
  expect(log[1]).toMatchObject({ hypervisors: [{ name: 'hv2', servers: 1 }] })
  announced.push('hv2')
  await check.check()
  expect(log).toHaveLength(2)
  expect(counts).toEqual([1, 1, 1, 1, 0])
})

test('one line names at most 20 of many hypervisors', async () => {
  const { check, log } = aCheck(Object.fromEntries(Array.from({ length: 1_000 }, (_, i) => [`hv${i}`, 1])), [])
  for (let i = 0; i < 2; i++) await check.check()
  expect(log).toHaveLength(1)
  expect(log[0]!.hypervisors).toHaveLength(20)
  expect(log[0]!.all).toBe(1_000)
})

test('each check announces imds-api with the hypervisors that are drained', async () => {
  const drained: Record<string, Date> = { hv2: new Date('2026-11-23T09:00:00Z') }
  const { check, announcements } = aCheck({ hv1: 1, hv2: 1 }, ['hv1', 'hv2'], drained)
  await check.check()
  delete drained['hv2']
  await check.check()
  expect(announcements).toEqual([{ hv2: '2026-11-23T09:00:00.000Z' }, {}])
})
