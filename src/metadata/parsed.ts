/** The result of every parser: a typed value, or everything that is wrong with the input. */
export type Parsed<Value, Fault> =
  | { readonly ok: true; readonly value: Value }
  | { readonly ok: false; readonly faults: readonly Fault[] }
