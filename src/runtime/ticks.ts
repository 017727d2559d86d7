/**
 * Keeps V8 on the fast path for `process.nextTick`.
 *
 * If a full garbage collection finds no object of a hidden class, V8 drops the class. `process.nextTick` creates its
 * objects by a literal with computed keys. Once V8 has dropped their class, it creates all later ones on its slow path
 * (Runtime_DefineKeyedOwnPropertyInLiteral), until the process ends. A collection during the start has this effect.
 * docs/performance.md has its cost.
 */
import { executionAsyncResource } from 'node:async_hooks'

/** Keeps one of Node's tick objects, and so their hidden class, until the process ends. */
export function keepTickShape(): void {
  process.nextTick(() => {
    const tick = executionAsyncResource()
    process.on('exit', () => tick)
  })
}
