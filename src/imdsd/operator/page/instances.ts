/** The instances of this hypervisor as a table that can be searched, with what their guests have asked for. */
import { canonicalAddress, overlap } from '../../../metadata/address.ts'
import { DEFAULT_NETWORK } from '../../../metadata/identifiers.ts'
import { rangesOf, type NetworkRange } from '../../../metadata/instance.ts'
import type { LastRequests } from '../../guest/last-requests.ts'
import { markup, type Markup } from '../../../pages/markup.ts'
import { formatSearch, hrefOf, partOf, type Question } from '../../../pages/search.ts'
import { formatTable, number } from '../../../pages/table.ts'
import { formatDuration } from '../../../runtime/ago.ts'
import { formatSome } from '../../../runtime/amounts.ts'
import { TurnBudget } from '../../../limits/turn-budget.ts'
import type { ServedInstance } from '../../view/served-instance.ts'

/** What the table is made of. `nowMs`: of the clock of the requests. */
interface InstancesParts {
  readonly instances: Iterable<ServedInstance>
  readonly requests: Pick<LastRequests, 'of'>
  readonly nowMs: number
}

/** The addresses of an instance that the table shows. */
const MAX_ADDRESSES = 4

/** Formats the part of the table that a question wants. */
export async function formatInstances(
  { instances, requests, nowMs }: InstancesParts,
  question: Question,
): Promise<Markup> {
  const found = await findInstances(instances, question.search)
  const part = partOf(found, question)
  const ago = (ms: number) => `${formatDuration((nowMs - ms) / 1000)} ago`
  const rows = part.rows.map((served) => {
    const { id, revision } = served.instance
    const all = requests.of(served)
    const refused = all
      .filter(({ outcome }) => outcome !== 'served')
      .map(({ topic, outcome }) => `${topic}: ${outcome}`)
    return [
      markup`<a href="${hrefOf(id)}">${id}</a>`,
      formatAddresses(rangesOf(served.instance)),
      revision,
      all.reduce((sum, { count }) => sum + count, 0),
      all[0] === undefined ? 'none yet' : ago(all[0].atMs),
      refused.join(', '),
    ]
  })
  return markup`${formatSearch(question, part, 'an id or an address')}${formatTable(
    ['instance', 'addresses', number('revision'), number('requests'), 'last request', 'refused at last'],
    rows,
    question.search === '' ? 'This hypervisor serves no instance.' : 'No instance is found.',
  )}
<p class="soft">Requests are those since the instance is served here. Search for its whole id to see what its guest has asked for.</p>`
}

/** The instances whose id or address contains a text, sorted. All work is done in slices, since there may be thousands. */
async function findInstances(instances: Iterable<ServedInstance>, search: string): Promise<ServedInstance[]> {
  const text = search.toLowerCase()
  const address = canonicalAddress(text)
  const matches = ({ range }: NetworkRange) =>
    range.includes(text) || (address !== undefined && overlap(range, address))
  const budget = new TurnBudget()
  const found: ServedInstance[] = []
  for (const served of [...instances]) {
    const { instance } = served
    if (text === '' || instance.id.toLowerCase().includes(text) || rangesOf(instance).some(matches)) found.push(served)
    await budget.spend(0)
  }
  return found.sort((a, b) => (a.instance.id < b.instance.id ? -1 : 1))
}

function formatAddresses(ranges: readonly NetworkRange[]): string {
  const all = ranges.map(({ network, range }) => (network === DEFAULT_NETWORK ? range : `${range} on ${network}`))
  return formatSome(all, MAX_ADDRESSES)
}
