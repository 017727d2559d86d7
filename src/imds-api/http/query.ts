/** The parameters of a query, which are texts. The faults of all are refused at once (400). */
import { fieldFault, refuseAny, type Detail, type DetailCode } from '../model/refusal.ts'
import { STORABLE_FAULT, STORABLE_KEYWORD } from '../model/storable-text.ts'

/** The longest value of most parameters, in UTF-16 units. */
export const MAX_VALUE_LENGTH = 1_024

/** Reads a query. What a method returns for a parameter with a fault is of no use: `end` refuses the query. */
export class QueryReader {
  readonly #query: Readonly<Record<string, unknown>>
  readonly #faults: Detail[] = []

  constructor(query: unknown) {
    this.#query = query as Readonly<Record<string, unknown>>
  }

  text(name: string, most = MAX_VALUE_LENGTH): string | undefined {
    const value = this.#query[name]
    if (value === undefined) return undefined
    if (typeof value !== 'string') this.fault(name, 'malformed', 'must be given once')
    else if (value.length > most) this.fault(name, 'too_long', `must not have more than ${most} characters`)
    else if (!STORABLE_KEYWORD.validate(true, value)) this.fault(name, 'malformed', STORABLE_FAULT)
    else return value
    return undefined
  }

  /** An integer from `least` to `most`, without more digits than that. */
  integer(name: string, most: number, least = 1): number | undefined {
    const text = this.text(name)
    if (text === undefined) return undefined
    const number = /^[0-9]+$/.test(text) && text.length <= String(most).length ? Number(text) : -1
    if (number >= least && number <= most) return number
    this.fault(name, 'out_of_range', `must be an integer from ${least} to ${most}`)
    return undefined
  }

  /** A parameter that is required, and one of these. */
  oneOf<Value extends string>(name: string, values: readonly Value[]): Value {
    const given = this.#query[name]
    if (!values.includes(given as Value))
      this.fault(name, given === undefined ? 'missing' : 'not_allowed', `must be one of ${values.join(', ')}`)
    return given as Value
  }

  /** Adds a fault. `text` continues the name. */
  fault(name: string, code: DetailCode, text: string): void {
    this.#faults.push(fieldFault(name, code, `${name} ${text}`))
  }

  /** Refuses a query that has faults. Call it last. */
  end(): void {
    refuseAny('bad_request', this.#faults)
  }
}
