/**
 * Why is one tick kept for ever?
 *
 * V8 forgets the shape of objects when a full collection finds none of them. `process.nextTick` makes its objects by a literal with computed keys, and
 * there V8 takes a shape that it forgot, and meets again, for a second one: from then on it makes each of them by its slow path
 * (Runtime_DefineKeyedOwnPropertyInLiteral), for as long as the process lives. A start collects, with no tick about. By perf, on Node 26, that
 * is 1.0 of 16 microseconds of a request, and 2.4 of 62 of a connection for one request.
 */
import { executionAsyncResource } from 'node:async_hooks'

/** Keeps one of Node's tick objects, and so their shape, until the process ends. */
export function keepTickShape(): void {
  process.nextTick(() => {
    const tick = executionAsyncResource()
    process.on('exit', () => tick)
  })
}
