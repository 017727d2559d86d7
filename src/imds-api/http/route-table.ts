/** The routes of a server: the methods of a path, for 405, and the nearest path to one that does not exist. */
import { nearest } from '../../runtime/nearest.ts'

interface Route {
  readonly segments: readonly string[]
  readonly pattern: RegExp
  readonly methods: Set<string>
}

/** The version of the API, which clients forget. */
const PREFIX = '1.0'
/** No path of a route has more segments, and none of its segments is longer. To compare longer ones would take time. */
const [MAX_SEGMENTS, MAX_SEGMENT] = [8, 64]

export class RouteTable {
  readonly #routes = new Map<string, Route>()

  add(url: string, methods: readonly string[]): void {
    const route = this.#routes.get(url) ?? {
      segments: url.split('/').slice(1),
      pattern: new RegExp(`^${url.replace(/[.*+?^${}()|[\]\\]/g, '\\$&').replace(/:[^/]+/g, '[^/]+')}/?$`),
      methods: new Set(),
    }
    for (const method of methods) route.methods.add(method)
    this.#routes.set(url, route)
  }

  /** The methods of a path, sorted; none: there is no such path. */
  methodsOf(path: string): readonly string[] {
    return [
      ...new Set(
        [...this.#routes.values()].filter(({ pattern }) => pattern.test(path)).flatMap(({ methods }) => [...methods]),
      ),
    ].sort()
  }

  /**
   * The existing path that is nearest to a wrong one: with the fewest corrected words, and with the prefix if it was
   * missing. Ids stay as they are.
   */
  nearestPath(path: string): string | undefined {
    const given = path.replace(/\/$/, '').split('/').slice(1)
    if (given.length >= MAX_SEGMENTS || given.some(({ length }) => length === 0 || length > MAX_SEGMENT))
      return undefined
    const found = [...this.#routes.values()].flatMap(({ segments }) => [
      correct(given, segments),
      correct([PREFIX, ...given], segments),
    ])
    const [best] = found.filter((one) => one !== undefined).sort((a, b) => a.corrected - b.corrected)
    return best && `/${best.path.join('/')}`
  }
}

/**
 * The segments as a route has them, and how many words had to be corrected. Undefined: they are not near that route.
 */
function correct(
  given: readonly string[],
  segments: readonly string[],
): { readonly path: readonly string[]; readonly corrected: number } | undefined {
  if (given.length !== segments.length || segments.includes('*')) return undefined
  const path = segments.map((segment, i) =>
    segment.startsWith(':') || segment === given[i] ? given[i] : nearest(given[i]!, [segment]),
  )
  return path.every((segment) => segment !== undefined)
    ? { path, corrected: path.filter((segment, i) => segment !== given[i]).length }
    : undefined
}
