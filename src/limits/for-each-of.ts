/** Runs a task for each of some values, several at a time. After a task fails, no other begins: rejects with its error. */
export async function forEachOf<T>(
  values: Iterable<T>,
  task: (value: T) => Promise<void>,
  atOnce: number,
): Promise<void> {
  let hasFailed = false
  const iterator = values[Symbol.iterator]()
  await Promise.all(
    Array.from({ length: atOnce }, async () => {
      while (!hasFailed) {
        const next = iterator.next()
        if (next.done === true) return
        try {
          await task(next.value)
        } catch (error) {
          hasFailed = true
          throw error
        }
      }
    }),
  )
}
