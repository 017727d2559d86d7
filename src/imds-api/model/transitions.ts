/** State machines, as tables of their transitions. */

/** The states that a transition can start from, and the state that it leads to; undefined: the state stays. */
export interface Transition<State> {
  readonly from: readonly State[]
  readonly to: State | undefined
}

/**
 * A state machine whose transitions have a `Name`. `after`: the state that follows; undefined: the transition is not
 * possible in this state. `canBecome`: whether a state can follow another, in any number of steps.
 */
export interface Transitions<State, Name> {
  readonly after: (state: State, name: Name) => State | undefined
  readonly canBecome: (from: State, to: State) => boolean
}

export function transitions<State extends string, Name extends string>(
  table: Readonly<Record<Name, Transition<State>>>,
): Transitions<State, Name> {
  const after = (state: State, name: Name) => {
    const { from, to = state } = table[name]
    return from.includes(state) ? to : undefined
  }
  const names = Object.keys(table) as Name[]
  const canBecome = (from: State, to: State) => {
    const reached = new Set<State>()
    const add = (state: State) => {
      for (const name of names) {
        const next = after(state, name)
        if (next === undefined || reached.has(next)) continue
        reached.add(next)
        add(next)
      }
    }
    add(from)
    return reached.has(to)
  }
  return { after, canBecome }
}
