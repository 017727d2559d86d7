/** The routes of a server: the methods of a path, for 405. */
interface Route {
  readonly pattern: RegExp
  readonly methods: Set<string>
}

export class RouteTable {
  readonly #routes = new Map<string, Route>()

  add(url: string, methods: readonly string[]): void {
    const route = this.#routes.get(url) ?? {
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
}
