/** Changes of valid requests: of the JSON, the bytes of the body, the path, the query, the headers and the method. */
import type { Dice } from '../dice.ts'
import * as nonsense from './nonsense.ts'
import { jsonOf } from './requests.ts'
import type { ApiRequest } from './send.ts'

const { VALUES, RAW, PIECES } = nonsense

type Mutation = (request: ApiRequest, dice: Dice) => ApiRequest
type Member = Record<string, unknown>

/** Around JSON text that must not be quoted. */
const QUOTE = '@raw@'

const MUTATIONS: readonly Mutation[] = [
  inJson((parent, key, dice) => {
    parent[key] = dice.pick(VALUES)
  }),
  inJson((parent, key, dice) => {
    parent[key] = `${QUOTE}${dice.pick(RAW)}${QUOTE}`
  }),
  inJson((parent, key) => {
    // eslint-disable-next-line @typescript-eslint/no-dynamic-delete
    delete parent[key]
  }),
  inJson((parent, _key, dice) => add(parent, dice.pick(nonsense.NAMES), dice.pick(VALUES))),
  inBody((body, dice) => {
    const value = parsed(body) ?? {}
    add(value, dice.pick(nonsense.UNSETTABLE), nonsense.MARK)
    return jsonOf(value)
  }),
  inBody((body, dice) => {
    const at = dice.below(body.length + 1)
    const [before, after] = [body.slice(0, at), body.slice(at)]
    return dice.pick([
      () => before,
      () => before + dice.bytes(1 + dice.below(4)) + after,
      () => before + dice.pick(RAW) + after,
      () => `\xef\xbb\xbf${body}`,
      () => `[${body}]`,
      () => body + body,
      () => `${body}\0`,
      () => ' '.repeat(66_000) + body,
      () => body.replace(/^\{/, '{"name":"first","name":"second",'),
      () => body.replace(/^\{/, '{"__proto__":{"read_only":false,"account":"acc-tris0"},'),
      () => dice.pick(nonsense.BODIES),
      () => dice.bytes(dice.below(200)),
    ])()
  }),
  inTarget((path, query, dice) => {
    const at = 1 + dice.below(path.length) // what begins with no slash never arrives at a route
    const changed = dice.pick([
      () => path.slice(0, at) + dice.pick(PIECES) + path.slice(at),
      () => path + dice.pick(nonsense.ENDS),
      () => path.replace(/[^/]*$/, () => dice.pick(PIECES)),
      () => path.replace(/[a-z]/g, (letter) => (dice.chance(0.2) ? escapeLetter(letter) : letter)),
      () => path.toUpperCase(),
      () => path.replace('/1.0', dice.pick(nonsense.VERSIONS)),
      () => dice.pick(nonsense.UNLISTED),
    ])()
    return changed + query
  }),
  inTarget((path, query, dice) => {
    const kept = dice.pick([query, query, '', query.replace(/=[^&]*/g, '=')])
    return `${path}${kept === '' ? '?' : `${kept}&`}${dice.pick(dice.chance(0.8) ? nonsense.QUERIES : PIECES)}`
  }),
  (request, dice) => {
    const [name, ...values] = dice.pick(nonsense.HEADERS)
    return { ...request, headers: { ...request.headers, [name]: dice.pick(values) } }
  },
  (request, dice) => {
    const removed = dice.pick(['', ...Object.keys(request.headers)])
    return {
      ...request,
      headers: Object.fromEntries(Object.entries(request.headers).filter(([name]) => name !== removed)),
    }
  },
  (request, dice) => ({ ...request, method: dice.pick(nonsense.METHODS) }),
]

/** A request with up to three changes. */
export function mutate(request: ApiRequest, dice: Dice): ApiRequest {
  let mutated = request
  for (let left = dice.pick([1, 1, 2, 3]); left > 0; left--) mutated = dice.pick(MUTATIONS)(mutated, dice)
  return mutated
}

/** A change of one member somewhere in the JSON of a body. Without JSON: another body. */
function inJson(change: (parent: Member, key: string, dice: Dice) => void): Mutation {
  return inBody((body, dice) => {
    const value = parsed(body)
    if (value === undefined) return jsonOf(dice.pick(VALUES))
    const { parent, key } = dice.pick([{ parent: value, key: 'name' }, ...placesIn(value)])
    change(parent, key, dice)
    return jsonOf(value).replace(/"@raw@(.*?)@raw@"/s, (_all, text: string) => JSON.parse(`"${text}"`) as string)
  })
}

function inBody(change: (body: string, dice: Dice) => string): Mutation {
  return ({ body = '{}', headers, ...request }, dice) => ({
    ...{ ...request, body: change(body, dice) },
    headers: { 'Content-Type': 'application/json', ...headers },
  })
}

/** `query`: with its question mark, or empty. */
function inTarget(change: (path: string, query: string, dice: Dice) => string): Mutation {
  return (request, dice) => {
    const [path, ...query] = request.target.split(/(?=\?)/)
    return { ...request, target: change(path!, query.join(''), dice) }
  }
}

/** Adds a member to an object; `__proto__` too, with which an assignment would set the prototype. */
function add(parent: Member, name: string, value: unknown): void {
  if (!Array.isArray(parent)) Object.defineProperty(parent, name, { value, enumerable: true, configurable: true })
}

/** The object or array of a JSON body. */
function parsed(body: string): Member | undefined {
  try {
    const value: unknown = JSON.parse(Buffer.from(body, 'latin1').toString())
    return typeof value === 'object' && value !== null ? (value as Member) : undefined
  } catch {
    return undefined
  }
}

function placesIn(parent: Member): { readonly parent: Member; readonly key: string }[] {
  return Object.entries(parent).flatMap(([key, value]) => [
    { parent, key },
    ...(typeof value === 'object' && value !== null ? placesIn(value as Member).slice(0, 20) : []),
  ])
}

function escapeLetter(letter: string): string {
  return `%${letter.charCodeAt(0).toString(16)}`
}
