/** What a record has that no guest ever sees, for `put`, `import` and `validate`: a publisher may have meant something else. */
import { isReadableTag } from '../metadata/categories.ts'
import type { Shape } from '../metadata/record.ts'
import { InstanceSchema } from '../metadata/schema.ts'
import { escapeControls } from '../runtime/terminal.ts'
import { isJsonObject } from '../runtime/json.ts'

/** The warnings of one record that are printed. */
const MAX_WARNINGS = 10
/** A longer name is cut in a warning. */
const MAX_NAME = 64

/** The warnings of a document, which may have faults: fields that are ignored, and tags that no guest can read. */
export function warningsOf(document: unknown): readonly string[] {
  const found: string[] = []
  let more = 0
  for (const warning of allOf(document)) {
    if (found.length < MAX_WARNINGS) found.push(warning())
    else more += 1
  }
  return more === 0 ? found : [...found, `${more} more fields or tags are ignored`]
}

function* allOf(document: unknown): Generator<() => string> {
  yield* ignoredIn(InstanceSchema as Shape, document, '')
  const { tags, options } = (isJsonObject(document) ? document : {}) as { tags?: unknown; options?: unknown }
  if (!isJsonObject(tags) || !isJsonObject(options) || options['instanceMetadataTags'] !== 'enabled') return
  for (const key of Object.keys(tags))
    if (!isReadableTag(key)) yield () => `${pathOf('/tags', key)} is a tag that no guest can read, because of its key`
}

function* ignoredIn(
  { properties, patternProperties, items }: Shape,
  value: unknown,
  path: string,
): Generator<() => string> {
  if (Array.isArray(value)) {
    if (items !== undefined)
      for (const [i, element] of value.entries()) yield* ignoredIn(items, element, `${path}/${i}`)
    return
  }
  if (!isJsonObject(value)) return
  const [pattern] = Object.keys(patternProperties ?? {})
  for (const [name, field] of Object.entries(value)) {
    const shape = properties !== undefined && Object.hasOwn(properties, name) ? properties[name] : undefined
    if (shape !== undefined) yield* ignoredIn(shape, field, `${path}/${name}`)
    else if (pattern === undefined || !new RegExp(pattern, 'u').test(name))
      yield () => `${pathOf(path, name)} is no field of a record, and is ignored`
  }
}

function pathOf(path: string, name: string): string {
  const shown = name.length > MAX_NAME ? `${name.slice(0, MAX_NAME)}...` : name
  return `${path}/${escapeControls(shown.replaceAll('~', '~0').replaceAll('/', '~1'))}`
}
