/** What a stream of the process can show. Only a terminal has a width, and colours unless NO_COLOR is set. */
import { styleText } from 'node:util'

/** A stream of the process. `hasColors` knows NO_COLOR and TERM. */
export interface Screen {
  readonly isTTY?: boolean
  readonly columns?: number
  hasColors?(): boolean
}

/** The styles in use: red for a failure, yellow for a warning, green for what is well. */
export type Style = 'bold' | 'dim' | 'red' | 'yellow' | 'green'

/** A text of a table, with a style or without. */
export type Cell = string | { readonly text: string; readonly style: Style }

export type Paint = (style: Style, text: string) => string

/** The width of a terminal in characters; undefined for any other stream, and if the terminal does not say. */
export function widthOf({ isTTY, columns = 0 }: Screen): number | undefined {
  return isTTY === true && columns > 0 ? columns : undefined
}

/** Returns what gives texts for a stream their style. FORCE_COLOR changes nothing for a stream that is no terminal. */
export function paintFor(screen: Screen): Paint {
  return screen.isTTY === true && screen.hasColors?.() === true
    ? (style, text) => styleText(style, text, { validateStream: false })
    : plain
}

export const plain: Paint = (_style, text) => text
