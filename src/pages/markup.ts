/**
 * HTML from templates in which every value is escaped, in text and in quoted attributes. Only what `markup` has built is
 * inserted as it is.
 *
 * It is our own: the safety of the pages rests on these few lines, and a library would be more to read, not less.
 */
import { escapeControls } from '../runtime/terminal.ts'

/** What a template may contain. Undefined and false are left out; the parts of a list are joined. */
export type Value = string | number | undefined | false | Markup | readonly Value[]

/** HTML. Only `markup` makes it. */
class Markup {
  readonly #text: string

  constructor(text: string) {
    this.#text = text
  }

  toString(): string {
    return this.#text
  }
}
export type { Markup }

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
}

/**
 * Builds HTML. In an attribute, write quotes around a value. A value must not begin a URL, and not be a style or a
 * script: escaping does not make these safe.
 */
export function markup(parts: TemplateStringsArray, ...values: readonly Value[]): Markup {
  return new Markup(parts.map((part, i) => (i === 0 ? part : `${format(values[i - 1])}${part}`)).join(''))
}

function format(value: Value): string {
  if (value === undefined || value === false) return ''
  if (value instanceof Markup) return value.toString()
  if (typeof value === 'object') return value.map(format).join('')
  return escapeControls(String(value)).replace(/[&<>"']/g, (character) => ENTITIES[character]!)
}
