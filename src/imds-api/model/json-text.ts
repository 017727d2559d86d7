/**
 * JSON as text: bounds that are checked before JSON.parse, and data that has to come back as it was sent. Parsing
 * changes data: numbers become doubles, keys that look like numbers move to the front, and repeated keys go missing.
 * Each function reads the text once, in its order, without recursion, and lets other requests run meanwhile.
 */
import type { TurnBudget } from '../../limits/turn-budget.ts'

/**
 * What a text may have at most. `members`: of the outermost object or array; `innerMembers`: of each object or array in
 * it.
 */
export interface JsonBounds {
  readonly levels: number
  readonly tokens: number
  readonly members: number
  readonly innerMembers: number
}

const [QUOTE, COMMA, COLON, OPEN_ARRAY, BACKSLASH, CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT] = [
  0x22, 0x2c, 0x3a, 0x5b, 0x5c, 0x5d, 0x7b, 0x7d,
] as const
const [TAB, NEWLINE, RETURN, SPACE] = [0x09, 0x0a, 0x0d, 0x20] as const
/** After so many tokens, the budget of the turn is looked at. */
const SLICE_TOKENS = 4_096
/** A string without escapes. */
// eslint-disable-next-line no-control-regex -- RFC 8259, 7
const PLAIN_STRING = /"[^"\\\0-\x1f]*"/y
const NOT_SPACE = /[^ \t\n\r]/g
const NUMBER_OR_LITERAL = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null/y

/**
 * The tokens of a text: punctuation marks, strings, and runs of other characters. Any text has tokens, even if it is no
 * JSON.
 */
class Tokens {
  readonly text: string
  /** Where the present token is, and its first character. */
  from = 0
  end = 0
  code = 0
  count = 0

  constructor(text: string) {
    this.text = text
  }

  /** True after each SLICE_TOKENS tokens. */
  get endsSlice(): boolean {
    return this.count % SLICE_TOKENS === 0
  }

  /** Goes to the next token. False: there is none. */
  next(): boolean {
    const { text } = this
    const from = isSpace(text.charCodeAt(this.end)) ? afterSpaces(text, this.end) : this.end
    if (from >= text.length) return false
    this.count++
    this.from = from
    this.code = text.charCodeAt(from)
    this.end =
      this.code === QUOTE ? endOfString(text, from) : isPunctuation(this.code) ? from + 1 : endOfRun(text, from)
    return true
  }

  get isMark(): boolean {
    return isPunctuation(this.code)
  }

  get isOpening(): boolean {
    return this.code === OPEN_OBJECT || this.code === OPEN_ARRAY
  }

  get isClosing(): boolean {
    return this.code === CLOSE_OBJECT || this.code === CLOSE_ARRAY
  }

  /** The value of a token that is a string. Throws a SyntaxError if it is malformed. */
  string(): string {
    return JSON.parse(this.text.slice(this.from, this.end)) as string
  }
}

/**
 * Says which bound a text exceeds. Undefined: none. The text need not be JSON, and is read up to the first bound that
 * it exceeds.
 */
export async function boundsFault(
  json: string,
  { levels, tokens, members, innerMembers }: JsonBounds,
  budget: TurnBudget,
): Promise<string | undefined> {
  const token = new Tokens(json)
  const commas = new Uint32Array(levels + 1) // of each object and array that is open
  let depth = 0
  while (token.next()) {
    if (token.endsSlice) await budget.spend(0)
    if (token.count > tokens) return `must have at most ${tokens} names, values and punctuation marks`
    if (token.isOpening) {
      if (++depth > levels) return `must have at most ${levels} levels of objects and arrays`
      commas[depth] = 0
    } else if (token.isClosing) {
      depth = Math.max(0, depth - 1)
    } else if (token.code === COMMA) {
      const most = depth > 1 ? innerMembers : members
      if (++commas[depth]! >= most) return `must have at most ${most} elements in an array, or names in an object`
    }
  }
  return undefined
}

/** What may come next in JSON, with its punctuation marks. */
const MARKS = {
  'a value': '{[',
  'a value or ]': '{[]',
  'a name': '',
  'a name or }': '}',
  ':': ':',
  ', or ]': ',]',
  ', or }': ',}',
  'the end': '',
} as const satisfies Readonly<Record<string, string>>
type Expected = keyof typeof MARKS

/** Says where a text is no JSON (RFC 8259) of at most `levels` levels. Undefined: it is. */
export async function jsonFault(json: string, levels: number, budget: TurnBudget): Promise<string | undefined> {
  const token = new Tokens(json)
  const isObject = new Uint8Array(levels + 1) // of each object and array that is open
  let depth = 0
  let expected: Expected = 'a value'
  while (token.next()) {
    if (token.endsSlice) await budget.spend(0)
    if (!isExpected(token, expected) || (token.isOpening && depth === levels))
      return `it must have ${expected} at position ${token.from}`
    const isName = !token.isMark && (expected === 'a name' || expected === 'a name or }')
    if (token.isOpening) isObject[++depth] = token.code === OPEN_OBJECT ? 1 : 0
    if (token.isClosing) depth--
    const inObject = isObject[depth] === 1
    if (token.isOpening) expected = inObject ? 'a name or }' : 'a value or ]'
    else if (isName) expected = ':'
    else if (token.code === COLON) expected = 'a value'
    else if (token.code === COMMA) expected = inObject ? 'a name' : 'a value'
    else expected = depth === 0 ? 'the end' : inObject ? ', or }' : ', or ]'
  }
  return expected === 'the end' ? undefined : `it ends too early: it must have ${expected}`
}

function isExpected(token: Tokens, expected: Expected): boolean {
  if (token.isMark) return (MARKS[expected] as string).includes(token.text.charAt(token.from))
  const isValue = expected === 'a value' || expected === 'a value or ]'
  if (token.code !== QUOTE) return isValue && isAll(NUMBER_OR_LITERAL, token)
  return (isValue || expected === 'a name' || expected === 'a name or }') && isString(token)
}

/**
 * The members of the object that a text is: names and the texts of their values. Of a repeated name it is the last one,
 * as with JSON.parse.
 */
export async function memberTexts(json: string, budget: TurnBudget): Promise<Map<string, string>> {
  const token = new Tokens(json)
  const members = new Map<string, string>()
  let depth = 0
  let name: string | undefined // undefined: a name is next
  let [from, end] = [-1, 0] // of the value
  while (token.next()) {
    if (token.endsSlice) await budget.spend(0)
    if (token.isClosing) depth--
    if (name !== undefined && (depth === 0 || (depth === 1 && token.code === COMMA))) {
      // a member has ended
      members.set(name, json.slice(from, end))
      name = undefined
      from = -1
    } else if (depth === 1 && name === undefined) {
      name = token.string()
    } else if (depth === 1 && from < 0 && token.code !== COLON) {
      from = token.from
    }
    if (token.isOpening) depth++
    end = token.end
  }
  return members
}

/**
 * JSON without white space between its tokens and with the escapes that JSON.stringify would write. Numbers and the
 * order of names stay as they are.
 */
export async function compactJson(json: string, budget: TurnBudget): Promise<string> {
  const token = new Tokens(json)
  const parts: string[] = []
  let [runFrom, runEnd] = [0, 0] // the run of text that is copied as it is
  while (token.next()) {
    if (token.endsSlice) await budget.spend(0)
    if (token.from !== runEnd) {
      parts.push(json.slice(runFrom, runEnd))
      runFrom = token.from
    }
    runEnd = token.end
    if (token.code === QUOTE && !isAll(PLAIN_STRING, token)) {
      parts.push(json.slice(runFrom, token.from), JSON.stringify(token.string()))
      runFrom = runEnd
    }
  }
  parts.push(json.slice(runFrom, runEnd))
  return parts.join('')
}

function isString(token: Tokens): boolean {
  if (isAll(PLAIN_STRING, token)) return true
  try {
    token.string()
    return true
  } catch {
    return false
  }
}

/** True if all of a token matches. */
function isAll(pattern: RegExp, { text, from, end }: Tokens): boolean {
  pattern.lastIndex = from
  return pattern.test(text) && pattern.lastIndex === end
}

function isSpace(code: number): boolean {
  return code === SPACE || code === NEWLINE || code === RETURN || code === TAB
}

function afterSpaces(text: string, from: number): number {
  NOT_SPACE.lastIndex = from
  return NOT_SPACE.test(text) ? NOT_SPACE.lastIndex - 1 : text.length
}

function isPunctuation(code: number): boolean {
  return (
    code === COMMA ||
    code === COLON ||
    code === OPEN_OBJECT ||
    code === CLOSE_OBJECT ||
    code === OPEN_ARRAY ||
    code === CLOSE_ARRAY
  )
}

/** The end of a string, or of the text if the string has none. */
function endOfString(text: string, from: number): number {
  for (let quote = text.indexOf('"', from + 1); quote >= 0; quote = text.indexOf('"', quote + 1)) {
    let before = quote - 1
    while (text.charCodeAt(before) === BACKSLASH) before--
    if ((quote - before) % 2 === 1) return quote + 1
  }
  return text.length
}

function endOfRun(text: string, from: number): number {
  let end = from + 1
  for (; end < text.length; end++) {
    const code = text.charCodeAt(end)
    if (isSpace(code) || isPunctuation(code) || code === QUOTE) break
  }
  return end
}
