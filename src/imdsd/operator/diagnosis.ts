/**
 * Explains why this daemon does not serve an instance or an address, from its own state and one read of the store.
 *
 * `imdsctl explain` prints it, and `imdsctl wait` when it times out. It contains ids, hypervisors, addresses and
 * faults, and nothing else of a record.
 */
import type { FoundCondition } from '../../conditions/condition.ts'
import { inTime } from '../../limits/in-time.ts'
import { TokenBucket } from '../../limits/token-bucket.ts'
import type { InvalidRecord } from '../view/validate.ts'
import { plan, type PlanContext } from '../view/plan.ts'
import type { Source } from '../../store/source.ts'
import type { RecordHealth } from '../view/record-health.ts'
import type { Sync } from '../view/sync.ts'
import type { View } from '../view/view.ts'

/** The parts of a diagnosis. `networks`: those that this daemon serves; `now` is monotonic, in milliseconds. */
export interface DiagnosisParts extends PlanContext {
  readonly view: View
  readonly source: Pick<Source, 'load' | 'owner'>
  readonly sync: Pick<Sync, 'isConnected'> & { readonly health: Pick<RecordHealth, 'faultOf'> }
  readonly conditions: () => readonly FoundCondition[]
  readonly networks: readonly string[]
  readonly now: () => number
}

/** Diagnoses an instance, or an address that no instance of the view has. */
export interface Diagnosis {
  /** Undefined: the instance is served as the store has it. */
  instance(id: string): Promise<string | undefined>
  address(network: string, address: string): Promise<string>
}

/** How long to wait for the store, in milliseconds. */
const TIMEOUT_MS = 1000
/** How often the store is asked in a second, and in the first one: a person asks now and then. */
const RATE = 10
const BURST = 20
const NOT_ASKED = `the store was not asked, since operators have asked more than ${RATE} times a second: try again`

/**
 * Builds a Diagnosis, whose methods never reject. It has a rate limit of its own for questions to the store, so that a
 * program that asks in a loop does not load the store.
 */
export function buildDiagnosis(parts: DiagnosisParts): Diagnosis {
  const { view, source, sync, networks, hypervisor, now } = parts
  const questions = new TokenBucket(BURST, RATE)

  const lookedUp = async (id: string): Promise<string> => {
    const loaded = await inTime(first(source.load([id])), TIMEOUT_MS)
    if (loaded === undefined || loaded.kind === 'absent') return `the store has no record of ${id}`
    const planned = plan(loaded, undefined, view.seen(id), 'index', parts)
    if (planned.kind === 'fault') return formatFault(id, planned.fault)
    if (planned.kind === 'behind')
      return `the store has an earlier state of ${id} than was seen here, which is not applied`
    if (planned.kind !== 'remove') return `the record of ${id} names this hypervisor and was not read yet`
    return planned.movedTo === undefined
      ? `${id} was removed from the store`
      : `the record of ${id} names ${planned.movedTo.instance.hypervisors.join(' and ')}, ` +
          `not this hypervisor (${String(hypervisor)})`
  }
  /** What is wrong with the instance in the view. */
  const problemsOf = (id: string): readonly string[] => {
    const fault = sync.health.faultOf(id)
    const instance = view.get(id)?.instance
    const isAnswered = instance?.interfaces.some(({ network }) => networks.includes(network)) !== false
    const lost = (view.get(id)?.lost ?? []).map(({ range }) => `${range} was claimed by an instance published later`)
    const served = instance === undefined ? '' : `; revision ${instance.revision} is served`
    return [
      ...(fault === undefined ? [] : [`${formatFault(id, fault)}${served}`]),
      ...formatContested(view, (_network, _range, ids) => ids.includes(id)),
      ...lost,
      ...(isAnswered
        ? []
        : [
            `this daemon serves ${networks.join(', ') || 'no network'}, ` +
              'and none of its interfaces is on one of these networks',
          ]),
    ]
  }
  const limited = async (lookUp: () => Promise<string>) => {
    if (!questions.tryTake(now())) return NOT_ASKED
    return lookUp().catch((error: unknown) => `the store does not answer: ${(error as Error).message}`)
  }
  const explained = async (known: readonly string[], lookUp: (() => Promise<string>) | undefined) => {
    const state = parts
      .conditions()
      .filter(({ code }) => code.startsWith('store-'))
      .map(({ text }) => text)
    const found = known.length > 0 || lookUp === undefined || !sync.isConnected() ? undefined : await limited(lookUp)
    return [...known, found, ...state].filter((text) => text !== undefined).join('; ')
  }
  const instance = async (id: string) => {
    const text = await explained(problemsOf(id), view.get(id) === undefined ? () => lookedUp(id) : undefined)
    return text === '' ? undefined : text
  }
  return {
    instance,
    address: async (network, address) => {
      const lookUp = async () => {
        const id = await inTime(source.owner(network, address), TIMEOUT_MS)
        if (id === undefined)
          return `the store has no instance with this address on network ${network}: was it published?`
        const known = problemsOf(id)
        const why =
          known.length > 0
            ? known.join('; ')
            : view.get(id) === undefined
              ? await lookedUp(id)
              : 'its record has other addresses'
        return `the store names ${id} as its owner: ${why}`
      }
      return explained([], lookUp)
    },
  }
}

/** The contested addresses and prefixes that are meant, with those who claim them. */
export function formatContested(
  view: Pick<View, 'contested'>,
  isMeant: (network: string, range: string, ids: readonly string[]) => boolean,
): string[] {
  return [...view.contested()].flatMap(([key, ids]) => {
    const [network = '', range = ''] = key.split(' ')
    return isMeant(network, range, ids) ? [`${range} is contested: ${ids.join(' and ')} claim it`] : []
  })
}

function formatFault(id: string, fault: InvalidRecord): string {
  return `the record of ${id} in the store is faulty: ${faultTexts(fault)}`
}

export function faultTexts({ faults }: InvalidRecord): string {
  return faults.map(({ path, message }) => `${path} ${message}`.trim()).join('; ')
}

async function first<T>(items: AsyncIterable<T>): Promise<T | undefined> {
  for await (const item of items) return item
  return undefined
}
