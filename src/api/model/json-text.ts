/**
 * JSON as text, for data that has to come back as it was sent. Parsing changes it: numbers become doubles, keys that look like numbers move to the front,
 * and repeated keys go missing. The functions take text that JSON.parse has accepted, and none recurses.
 */

const SPACE = new Set('\t\n\r ')
const PUNCTUATION = new Set('{}[],:')

/** JSON without white space between its tokens and with the escapes that JSON.stringify would write. `levels`: how deep objects and arrays are nested. */
export interface CompactJson { readonly text: string, readonly levels: number }

/** The text of a member of an object. If the name is repeated, it is the last one, as with JSON.parse. Undefined: there is none. */
export function memberText(json: string, name: string): string | undefined {
  let depth = 0
  let key: string | undefined // undefined: a key is next
  let valueFrom: number | undefined
  let found: string | undefined
  let lastEnd = 0
  forEachToken(json, (from, end) => {
    const character = json[from]!
    if (character === '}' || character === ']') depth--
    if (depth === 0 ? character === '}' : depth === 1 && character === ',') { // a member has ended
      if (key === name) found = json.slice(valueFrom, lastEnd)
      key = valueFrom = undefined
    } else if (depth === 1 && key === undefined) {
      key = JSON.parse(json.slice(from, end)) as string
    } else if (depth === 1 && character !== ':') {
      valueFrom ??= from
    }
    if (character === '{' || character === '[') depth++
    lastEnd = end
  })
  return found
}

/** Makes JSON compact. Numbers and the order of keys stay as they are. */
export function compactJson(json: string): CompactJson {
  let [text, depth, levels] = ['', 0, 0]
  let [runFrom, runEnd] = [0, 0] // the run of text that is copied as it is
  forEachToken(json, (from, end) => {
    const character = json[from]!
    if (character === '{' || character === '[') levels = Math.max(levels, ++depth)
    if (character === '}' || character === ']') depth--
    if (from !== runEnd) {
      text += json.slice(runFrom, runEnd)
      runFrom = from
    }
    const token = character === '"' ? json.slice(from, end) : ''
    if (token.includes('\\')) {
      text += json.slice(runFrom, from) + JSON.stringify(JSON.parse(token))
      runFrom = end
    }
    runEnd = end
  })
  return { text: text + json.slice(runFrom, runEnd), levels }
}

/** Calls `visit` with the place of each token: a punctuation mark, a string, or a number or literal. */
function forEachToken(json: string, visit: (from: number, end: number) => void): void {
  for (let from = 0, end; from < json.length; from = end) {
    end = from + 1
    const character = json[from]!
    if (SPACE.has(character)) continue
    if (character === '"') end = endOfString(json, from)
    else if (!PUNCTUATION.has(character)) while (end < json.length && !SPACE.has(json[end]!) && !PUNCTUATION.has(json[end]!)) end++
    visit(from, end)
  }
}

function endOfString(json: string, from: number): number {
  for (let quote = json.indexOf('"', from + 1); ; quote = json.indexOf('"', quote + 1)) {
    let backslashes = 0
    while (json[quote - 1 - backslashes] === '\\') backslashes++
    if (backslashes % 2 === 0) return quote + 1
  }
}
