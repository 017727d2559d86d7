/**
 * A source that names, and asks for, nothing but ids. Other programs can write the index, the notices and the owners of
 * a store, and the store makes paths and keys of ids.
 */
import { isId } from '../metadata/identifiers.ts'
import type { Loaded, Source } from './source.ts'

/** Wraps a source: leaves out whatever is no id. An instance without an id is absent. */
export function onlyIds(source: Source): Source {
  return {
    description: source.description,
    start: (events) => {
      source.start({
        ...events,
        notice: (id) => {
          if (isId(id)) events.notice(id)
        },
      })
    },
    index: async () => {
      const { initialised, digests } = await source.index()
      return { initialised, digests: new Map([...digests].filter(([id]) => isId(id))) }
    },
    load: (ids) => loadValid(source, ids),
    owner: async (network, address) => {
      const id = await source.owner(network, address)
      return isId(id) ? id : undefined
    },
    reports: source.reports,
    stop: () => source.stop(),
  }
}

async function* loadValid(source: Source, ids: readonly string[]): AsyncIterable<Loaded> {
  for (const id of ids) if (!isId(id)) yield { kind: 'absent', id }
  yield* source.load(ids.filter(isId))
}
