/** Runs a task for each of some values, several at a time. Rejects with the error of the first task that fails. */
export async function forEachOf<T>(
  values: Iterable<T>,
  task: (value: T) => Promise<void>,
  atOnce: number,
): Promise<void> {
  const iterator = values[Symbol.iterator]()
  await Promise.all(
    Array.from({ length: atOnce }, async () => {
      for (let next = iterator.next(); next.done !== true; next = iterator.next()) await task(next.value)
    }),
  )
}
