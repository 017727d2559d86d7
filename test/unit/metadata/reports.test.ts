import { describe, expect, test } from 'vitest'
import {
  addReport,
  boundRevisions,
  joinReports,
  mergeReports,
  NO_REPORTS,
  parseReports,
  storedForm,
  withoutRemoved,
  type Reports,
} from '../../../src/metadata/reports.ts'

const AT = '2026-11-20T15:04:05.123Z'

/** Adds reports, each as `NAME=TEXT`. */
function reported(before: Reports, ...names: string[]): Reports {
  return names.reduce((reports, name) => {
    const [report, text] = name.split('=') as [string, string]
    const result = addReport(reports, report, Buffer.from(text), AT)
    if (result.kind !== 'reported') throw new Error(result.kind)
    return result.reports
  }, before)
}

const values = (reports: Reports) =>
  Object.fromEntries([...withoutRemoved(reports).byName].map(([name, { text }]) => [name, text]))

describe('H9: merging stored reports', () => {
  test('what came in this life of the daemon is newer than anything stored, whatever its revision', () => {
    const stored = reported(NO_REPORTS, 'a=1', 'a=2', 'a=3', 'b=1')
    const merged = mergeReports(reported(NO_REPORTS, 'a=new'), 0, stored)
    expect(values(merged)).toEqual({ a: 'new', b: '1' })
    expect(merged.revision).toBeGreaterThan(stored.revision)
    expect(merged.byName.get('a')!.revision, 'newer than any stored one for other readers too').toBe(merged.revision)
  })

  test('of what was there before, the higher revision is newer', () => {
    const common = reported(NO_REPORTS, 'a=1', 'b=1')
    const stored = reported(common, 'a=2')
    expect(values(mergeReports(common, common.revision, stored))).toEqual({ a: '2', b: '1' })
    expect(values(mergeReports(stored, stored.revision, common))).toEqual({ a: '2', b: '1' })
  })

  test('what the guest has removed stays removed, whichever side knows of it', () => {
    const common = reported(NO_REPORTS, 'a=1', 'b=1')
    const removed = reported(common, 'a=')
    expect(values(mergeReports(common, common.revision, removed))).toEqual({ b: '1' })
    expect(values(mergeReports(removed, common.revision, common)), 'removed in this life').toEqual({ b: '1' })
    expect(values(mergeReports(removed, removed.revision, common)), 'removed in the last one').toEqual({ b: '1' })
    expect(values(mergeReports(reported(NO_REPORTS, 'a='), 0, common)), 'without a journal').toEqual({ b: '1' })
    expect(values(joinReports(common, removed)), 'during a migration').toEqual({ b: '1' })
    expect(values(joinReports(removed, common)), 'during a migration').toEqual({ b: '1' })
  })

  test('a report that is not in the store yet is kept', () => {
    const common = reported(NO_REPORTS, 'a=1', 'b=1')
    const unwritten = reported(common, 'c=1')
    expect(values(mergeReports(unwritten, unwritten.revision, common))).toEqual({ a: '1', b: '1', c: '1' })
  })

  test('a report that was kept before the store was read is older than one that was written later', () => {
    const stored = reported(NO_REPORTS, 'a=1', 'a=2', 'a=3')
    const kept = reported(NO_REPORTS, 'a=kept')
    const written = reported(mergeReports(kept, 0, stored), 'a=4')
    expect(values(mergeReports(kept, kept.revision, written))).toEqual({ a: '4' })
  })

  test('a report is newer than all that another life of the daemon has received before', () => {
    const stored = reported(NO_REPORTS, 'a=1', 'a=2', 'a=3')
    const later = addReport(NO_REPORTS, 'boot', Buffer.from('done'), '2026-11-20T15:04:05.200Z')
    expect(later.kind === 'reported' && later.reports.revision).toBeGreaterThan(stored.revision)
  })

  test('what two hypervisors have stored is joined, by revision', () => {
    const common = reported(NO_REPORTS, 'a=1', 'b=1')
    const [one, other] = [reported(common, 'a=2'), reported(common, 'c=1')]
    expect(values(joinReports(one, other))).toEqual({ a: '2', b: '1', c: '1' })
    expect(values(joinReports(other, one))).toEqual({ a: '2', b: '1', c: '1' })
    expect(joinReports(common, one).revision).toBe(one.revision)
  })

  test('removals use no room that reports need', () => {
    const names = Array.from({ length: 16 }, (_, i) => `${'n'.repeat(60)}${i}`)
    const removed = reported(NO_REPORTS, ...names.map((name) => `${name}=`))
    const full = Array.from({ length: 7 }, (_, i) => `a${i}=${'x'.repeat(2000)}`)
    expect(values(reported(removed, ...full))).toEqual(values(reported(NO_REPORTS, ...full)))
    expect(values(reported(removed, ...Array.from({ length: 16 }, (_, i) => `b${i}=1`)))).toHaveProperty('b15')
    const merged = mergeReports(removed, removed.revision, reported(NO_REPORTS, ...full))
    expect(values(merged)).toEqual(values(reported(NO_REPORTS, ...full)))
    expect(Buffer.byteLength(JSON.stringify(storedForm(merged)))).toBeLessThanOrEqual(16_384)
  })

  test('stored reports for which there is no room are left out', () => {
    const full = (prefix: string) =>
      reported(NO_REPORTS, ...Array.from({ length: 7 }, (_, i) => `${prefix}${i}=${'x'.repeat(2000)}`))
    expect(values(mergeReports(full('a'), 0, full('b')))).toEqual(values(full('a')))
  })
})

test('H9: a report may have the name of any property of an object', () => {
  const names = [...Object.getOwnPropertyNames(Object.prototype), 'toJSON', 'size', 'then']
  for (const part of [names.slice(0, 10), names.slice(10)]) {
    const reports = reported(NO_REPORTS, ...part.map((name) => `${name}=1`))
    expect([...mergeReports(NO_REPORTS, 0, reports).byName.keys()]).toEqual(part)
    expect(parseReports(JSON.stringify(storedForm(reports)))).toEqual(reports)
  }
})

describe('H9: reading stored reports, which a hypervisor may have forged', () => {
  const good = { revision: 2, reports: { a: { text: 'x', revision: 1, receivedAt: AT } } }

  test('the JSON of reports is read as it was', () => {
    const reports = reported(NO_REPORTS, 'a=1', 'b=2')
    expect(parseReports(JSON.stringify(storedForm(reports)))).toEqual(reports)
    expect(parseReports(JSON.stringify({ ...good, other: 1 }))).toEqual(parseReports(JSON.stringify(good)))
  })

  test('a revision far in the future leaves room for later reports', () => {
    const part = { revision: Number.MAX_SAFE_INTEGER, receivedAt: AT }
    const forged = parseReports(
      JSON.stringify({
        ...part,
        reports: { a: { text: 'forged', ...part } },
      }),
    )
    const merged = mergeReports(NO_REPORTS, 0, boundRevisions(forged!, Date.parse(AT)))
    const later = reported(merged, 'a=1')
    expect(parseReports(JSON.stringify(storedForm(later)))).toEqual(later)
    expect(values(mergeReports(later, later.revision, boundRevisions(forged!, Date.parse(AT))))).toEqual({ a: '1' })
    expect(merged.byName.get('a')!.revision).toBe(merged.revision - 1)
  })

  test.each([
    'x',
    'null',
    '{}',
    JSON.stringify({ ...good, revision: -1 }),
    JSON.stringify({ ...good, reports: { a: { ...good.reports.a, receivedAt: 'now' } } }),
    JSON.stringify({ ...good, reports: { '../a': good.reports.a } }),
    JSON.stringify({ ...good, reports: { a: { ...good.reports.a, text: '\u001b' } } }),
    JSON.stringify({ ...good, reports: { a: { ...good.reports.a, text: 'x'.repeat(4_097) } } }),
    JSON.stringify({ ...good, reports: Array(17).fill(good.reports.a) }),
    `${JSON.stringify(good)}${' '.repeat(16_384)}`,
  ])('other text is not read: %.60s', (text) => expect(parseReports(text)).toBeUndefined())
})
