/** Shows what a guest has reported (contract H9), marked as its claim. */
import type { GuestReports } from '../guest/reports.ts'
import { rangesOf } from '../../metadata/instance.ts'
import { NO_REPORTS, sshKeysIn, withoutRemoved } from '../../metadata/reports.ts'
import type { View } from '../view/view.ts'
import type { ReportsDocument } from './documents.ts'

interface ReportsParts {
  readonly view: Pick<View, 'get'>
  readonly reports: Pick<GuestReports, 'of'>
}

/** The last reports of an instance; undefined if this daemon does not serve it. */
export function reportsOf({ view, reports }: ReportsParts, id: string): ReportsDocument | undefined {
  const served = view.get(id)
  if (served === undefined) return undefined
  const { byName } = withoutRemoved(reports.of(served) ?? NO_REPORTS)
  const hosts = rangesOf(served.instance)
    .map(({ range }) => range)
    .filter((range) => !range.includes('/'))
    .join(',')
  const keys = new Set([...byName.values()].flatMap(({ text }) => sshKeysIn(text)))
  return {
    id,
    allowed: served.instance.options.reports === 'enabled',
    claimedByGuest: {
      reports: [...byName]
        .map(([name, { text, receivedAt }]) => ({ name, text, receivedAt }))
        .sort((a, b) => (a.name < b.name ? -1 : 1)),
      knownHosts: [...keys].map((key) => `${hosts} ${key}`),
    },
  }
}
