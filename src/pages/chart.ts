/** A chart of values over time, as inline SVG with its legend. */
import { markup, type Markup } from './markup.ts'

/** A line. `values` undefined: there was none at that time, and the line has a gap. */
export interface Line {
  readonly name: string
  readonly values: readonly (number | undefined)[]
}

/** `times`: of each value, from 0 (the left edge) to 1. `format`: a value for people. At most two lines. */
export interface Chart {
  readonly title: string
  readonly times: readonly number[]
  readonly lines: readonly Line[]
  readonly format: (value: number) => string
  readonly from: string
  readonly to: string
}

const WIDTH = 600
const HEIGHT = 100
const CLASSES = ['first', 'second']

/** Formats a chart. The highest value is at its upper edge. */
export function formatChart({ title, times, lines, format, from, to }: Chart): Markup {
  const highest = Math.max(0, ...lines.flatMap(({ values }) => values.filter((value) => value !== undefined)))
  const x = (time: number) => (Math.min(Math.max(time, 0), 1) * WIDTH).toFixed(1)
  const y = (value: number) => (HEIGHT - (highest === 0 ? 0 : (value / highest) * HEIGHT)).toFixed(1)
  const drawn = lines.map(({ values }, line) =>
    piecesOf(values).map(
      (piece) =>
        markup`<polyline class="${CLASSES[line]}" points="${piece.map(([i, value]) => `${x(times[i] ?? 0)},${y(value)}`).join(' ')}"/>`,
    ),
  )
  const legend = lines.map(({ name, values }, line) => {
    const last = values.at(-1)
    return markup` <span class="${CLASSES[line]}">${name} ${last === undefined ? '–' : format(last)}</span>`
  })
  return markup`<figure><figcaption>${title}:${legend}</figcaption>
<svg viewBox="0 -2 ${WIDTH} ${HEIGHT + 4}" preserveAspectRatio="none" role="img" aria-label="${title}">${drawn}</svg>
<div class="axis"><span>${from}</span><span>highest: ${format(highest)}</span><span>${to}</span></div></figure>
`
}

/** The parts of a line between its gaps: the position and the value of each point. */
function piecesOf(values: readonly (number | undefined)[]): (readonly [position: number, value: number])[][] {
  const pieces: (readonly [number, number])[][] = [[]]
  for (const [i, value] of values.entries()) {
    if (value === undefined) pieces.push([])
    else pieces.at(-1)!.push([i, value])
  }
  return pieces.filter((piece) => piece.length > 0)
}
