/** Finds what a misspelt name was meant to be. */

/** A name for a message: with the one that it was meant to be, if it is near one of `known`. */
export function describeUnknown(name: string, known: readonly string[]): string {
  const meant = nearest(name, known)
  return meant === undefined ? name : `${name} (did you mean ${meant}?)`
}

/**
 * The candidate that differs in the fewest letters: at most three, and a third of the name. Undefined if there is none.
 */
export function nearest(name: string, candidates: readonly string[]): string | undefined {
  const [best] = candidates
    .map((candidate) => ({ candidate, letters: distance(name, candidate) }))
    .sort((a, b) => a.letters - b.letters)
  return best !== undefined && best.letters <= Math.min(3, name.length / 3) ? best.candidate : undefined
}

/** How many letters have to be inserted, deleted or replaced (Levenshtein's distance). */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++)
      next.push(Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1)))
    row = next
  }
  return row[b.length]!
}
