/** The requests of guests in the last hour, and refusals by reason. */
import { statusOf } from '../../guest/refusals.ts'
import { formatChart } from '../../../pages/chart.ts'
import { markup, type Markup } from '../../../pages/markup.ts'
import { formatTable, number } from '../../../pages/table.ts'
import { HISTORY_MS, type History, type Interval } from './history.ts'

/** Formats the charts of the last hour. `nowMs`: of the history's clock. */
export function formatTraffic(history: Pick<History, 'intervals'>, nowMs: number): Markup {
  const intervals = history.intervals()
  if (intervals.length === 0) return markup`<p class="soft">The first half minute is not over yet.</p>`
  const times = intervals.map(({ endMs }) => 1 - (nowMs - endMs) / HISTORY_MS)
  const valuesOf = (key: Exclude<keyof Interval, 'endMs'>) => intervals.map((interval) => interval[key])
  const chart = { times, from: 'an hour ago', to: 'now' }
  return markup`<div class="charts">${[
    formatChart({
      ...chart,
      title: 'Requests per second',
      lines: [
        { name: 'all', values: valuesOf('requestsPerSecond') },
        { name: 'refused', values: valuesOf('refusalsPerSecond') },
      ],
      format: (value) => value.toFixed(value < 10 ? 1 : 0),
    }),
    formatChart({
      ...chart,
      title: 'Time to a response',
      lines: [
        { name: 'mean', values: valuesOf('meanMs') },
        { name: '99 % within', values: valuesOf('p99Ms') },
      ],
      format: (value) => `${value.toFixed(value < 10 ? 2 : 0)} ms`,
    }),
  ]}</div>`
}

export function formatRefusals(history: Pick<History, 'refusals'>): Markup {
  return formatTable(
    ['reason', number('status'), number('last hour'), number('since the start')],
    history
      .refusals()
      .flatMap(({ reason, lastHour, sinceStart }) =>
        reason === 'served' ? [] : [[reason, statusOf(reason), lastHour, sinceStart]],
      ),
    'No request was refused since the start.',
  )
}
