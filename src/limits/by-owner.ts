/**
 * What is open, such as connections, streams and requests that wait, by its owner. It counts, so that those who use it
 * can bound what an owner has.
 */
export class ByOwner<T> {
  readonly #owners = new Map<string, Set<T>>()
  #size = 0

  get size(): number {
    return this.#size
  }

  get owners(): readonly string[] {
    return [...this.#owners.keys()]
  }

  countOf(owner: string): number {
    return this.#owners.get(owner)?.size ?? 0
  }

  /** The items of an owner at present, the oldest first. */
  of(owner: string): readonly T[] {
    return [...(this.#owners.get(owner) ?? [])]
  }

  all(): readonly T[] {
    return this.owners.flatMap((owner) => this.of(owner))
  }

  add(owner: string, item: T): void {
    const items = this.#owners.get(owner) ?? new Set()
    this.#owners.set(owner, items.add(item))
    this.#size++
  }

  /** Removes an item, if it is there. */
  remove(owner: string, item: T): void {
    const items = this.#owners.get(owner)
    if (items?.delete(item) !== true) return
    if (items.size === 0) this.#owners.delete(owner)
    this.#size--
  }
}
