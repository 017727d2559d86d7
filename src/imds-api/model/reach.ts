/** Which states can follow a state in a table of transitions. */

/** True if a state can follow another, in any number of steps. `next`: the states of one step. */
export function isReachable<State>(
  from: State,
  to: State,
  next: (state: State) => readonly (State | undefined)[],
): boolean {
  const reached = new Set<State>()
  const add = (state: State) => {
    for (const one of next(state)) {
      if (one === undefined || reached.has(one)) continue
      reached.add(one)
      add(one)
    }
  }
  add(from)
  return reached.has(to)
}
