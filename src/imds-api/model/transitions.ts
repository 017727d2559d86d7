/** Tables of transitions: in which states an event is possible, and the state that follows. */

/** `to` undefined: the state stays. */
export interface Transition<State> {
  readonly from: readonly State[]
  readonly to: State | undefined
}

/**
 * What follows from a table. `after`: the state that follows; undefined: the event is not possible in this state.
 * `canBecome`: whether a state can follow another, in any number of steps.
 */
export interface Transitions<State, Event> {
  readonly after: (state: State, event: Event) => State | undefined
  readonly canBecome: (from: State, to: State) => boolean
}

export function transitions<State extends string, Event extends string>(
  table: Readonly<Record<Event, Transition<State>>>,
): Transitions<State, Event> {
  const after = (state: State, event: Event) => {
    const { from, to = state } = table[event]
    return from.includes(state) ? to : undefined
  }
  const events = Object.keys(table) as Event[]
  return {
    after,
    canBecome: (from, to) => isReachable(from, to, (state) => events.map((event) => after(state, event))),
  }
}

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
