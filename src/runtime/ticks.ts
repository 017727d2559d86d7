/**
 * Keeps V8 on the fast path for `process.nextTick`.
 *
 * V8 drops the hidden class of objects of which a full collection finds none. `process.nextTick` creates its objects by a literal with computed
 * keys; when V8 has dropped their class, it creates every later one by its slow path (Runtime_DefineKeyedOwnPropertyInLiteral), until the process
 * ends. A collection during the start has this effect. docs/performance.md says what it costs.
 */
import { executionAsyncResource } from 'node:async_hooks'

/** Keeps one of Node's tick objects, and so their hidden class, until the process ends. */
export function keepTickShape(): void {
  process.nextTick(() => {
    const tick = executionAsyncResource()
    process.on('exit', () => tick)
  })
}
