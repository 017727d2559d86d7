/**
 * Parses a file of variables as systemd does for EnvironmentFile= (systemd.exec(5)): comments begin with # or ;, a
 * value may have parts in quotes at its beginning, a backslash escapes the next character or joins lines, and nothing
 * is expanded. Neither a shell nor node:util's parseEnv agrees with that. A test compares this parser with systemd.
 */

/**
 * The variables of a file, and the names that systemd ignores because no variable can have them, such as `export NAME`.
 */
export interface ParsedEnvironmentFile {
  readonly variables: Readonly<Record<string, string>>
  readonly ignored: readonly string[]
}

/** One comment or line, after white space. A backslash joins lines, in comments too (before systemd 254). */
const ITEM =
  /\s*(?:[#;](?:\\[^]?|[^\\\n\r])*|([^\s#;][^=\n\r]*)(?:=((?:[ \t]*(?:'[^']*(?:'|$)|"(?:\\[^]|[^"\\])*(?:"|\\?$)))*)[ \t]*((?:\\[^]?|[^\\\n\r])*))?)/gy
const QUOTED = /'([^']*)'?|"((?:\\[^]|[^"\\])*)\\?"?/g
const NAME = /^[A-Za-z_][A-Za-z0-9_]*$/

/** Parses the text of a file. The last value of a variable counts. */
export function parseEnvironmentFile(text: string): ParsedEnvironmentFile {
  const variables: Record<string, string> = {}
  const ignored: string[] = []
  for (const [, key, quoted, bare] of text.matchAll(ITEM)) {
    if (key === undefined || quoted === undefined || bare === undefined) continue // a comment, or a line without "="
    const name = key.trimEnd()
    if (NAME.test(name)) variables[name] = unquote(quoted) + unescapeBare(bare)
    else ignored.push(name)
  }
  return { variables, ignored }
}

/** Joins the quoted parts. In double quotes a backslash escapes only ", \, ` and $, and joins lines. */
function unquote(parts: string): string {
  return Array.from(
    parts.matchAll(QUOTED),
    ([, single, double = '']) => single ?? double.replace(/\\(?:(["\\`$])|\n)/g, '$1'),
  ).join('')
}

/** A value without quotes. White space at its end is not part of it, unless it is escaped. */
function unescapeBare(text: string): string {
  const characters = text.match(/\\[^]?|[^\\]/g) ?? []
  while (/^[ \t]$/.test(characters.at(-1) ?? '')) characters.pop()
  return characters.map((one) => one.replace(/^\\[\n\r]?/, '')).join('')
}
