/** An answer of publish.lua without its place in the order, which differs each time. */
export function withoutPlace([verdict, ...details]: string[]): string[] {
  return verdict === 'refused' ? [verdict, ...details] : [verdict!, ...details.toSpliced(1, 1)]
}
