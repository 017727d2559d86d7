/** The data of a config map: an object, kept as the text that was sent, without white space. It is never parsed. */
import type { TurnBudget } from '../../limits/turn-budget.ts'
import { compactJson, type JsonBounds, jsonFault, memberTexts } from './json-text.ts'

/** The API's limit of `data`, in bytes of UTF-8. It is for the text that is stored. */
export const MAX_DATA_BYTES = 1_048_576
/**
 * The limit of a request's body: clients may send each byte of data as an escape of six bytes, such as \u0061. The
 * seventh part is room for the name.
 */
export const MAX_BODY_BYTES = 7 * MAX_DATA_BYTES
/**
 * Ruby's parser, which the CLI uses, reads 100 levels. The object of the response around `data` is one of them, as is
 * the body.
 */
export const MAX_LEVELS = 100
/** The bounds of a body. Each token of data is at least a byte of it; the rest is for the other members. */
export const BODY_BOUNDS: JsonBounds = {
  levels: MAX_LEVELS,
  tokens: MAX_DATA_BYTES + 16_384,
  members: 2_000,
  innerMembers: Infinity,
}

export interface DataText {
  readonly text: string
}

/**
 * Reads a body that is within BODY_BOUNDS. `data`, if it is an object, becomes a DataText; other values of `data` and
 * of `name` are what JSON.parse makes of them, but an array is empty. Other members are undefined. Throws a SyntaxError
 * if the body is no JSON.
 */
export async function parseBody(body: string, budget: TurnBudget): Promise<unknown> {
  const fault = await jsonFault(body, MAX_LEVELS, budget)
  if (fault !== undefined) throw new SyntaxError(fault)
  if (!body.trimStart().startsWith('{')) return parseShallow(body.trim())
  const members = await memberTexts(body, budget)
  const read = async (name: string, text: string) => {
    if (name === 'data' && text.startsWith('{')) return { text: await compactJson(text, budget) } satisfies DataText
    return name === 'data' || name === 'name' ? parseShallow(text) : undefined
  }
  const values: [string, unknown][] = []
  for (const [name, text] of members) values.push([name, await read(name, text)])
  return Object.fromEntries(values)
}

function parseShallow(text: string): unknown {
  return text.startsWith('[') ? [] : text.startsWith('{') ? {} : JSON.parse(text)
}

/** What is wrong with data; undefined: nothing. */
export function dataFault({ text }: DataText): string | undefined {
  const bytes = Buffer.byteLength(text)
  return bytes > MAX_DATA_BYTES ? `data must be at most ${MAX_DATA_BYTES} bytes; it is ${bytes}` : undefined
}
