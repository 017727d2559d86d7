/**
 * `imdsctl explain`: what the guest at an address, or of an instance, would get from a daemon and why, the path of packets
 * to it, and what it has asked for; or what a code of a log line or an alert means.
 *
 * The daemon knows all but the path, which this process looks at itself. So the path is shown only on the hypervisor.
 */
import { ID_RULE, isId, isName } from '../metadata/identifiers.ts'
import { canonicalAddress } from '../metadata/address.ts'
import { QUESTIONS } from '../imdsd/operator/client.ts'
import type { AskedFor, Explanation } from '../imdsd/operator/documents.ts'
import { formatFinding, STYLES, warning } from '../runtime/check.ts'
import { findPaths, NOT_LOOKED_AT, type Step } from '../imdsd/checks/guest-path.ts'
import type { DoctorSources } from './doctor/hypervisor.ts'
import { formatAgo } from '../runtime/ago.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import { parseUnixSocket } from '../runtime/host-port.ts'
import type { Output } from '../runtime/output.ts'
import { readSecretFile } from '../runtime/secret-file.ts'
import { explainCode, nearestCode } from '../runtime/symptoms.ts'
import type { Cell } from '../runtime/terminal.ts'
import { askDaemon } from './ask-daemon.ts'
import { withStore, type Context } from './commands.ts'

/** What the command needs. `passwordFile`: a file with the password of the operators' TCP listeners. */
export interface ExplainContext extends DoctorSources {
  readonly operator: string
  readonly output: Output
  readonly passwordFile: string | undefined
}

/** Explains a code of a log line, an alert, an address on a network, or each address of an instance. */
export async function explain(context: ExplainContext, target: string, network: string): Promise<void> {
  const { output, operator } = context
  if (explainCode(output, target)) return
  const isAddress = canonicalAddress(target) !== undefined
  if (!isAddress && !isId(target))
    throw new CommandFailure(EXIT.usage, `"${String(target)}" is neither an address nor ${ID_RULE}`)
  if (!isName(network)) throw new CommandFailure(EXIT.usage, `"${network}" is not the name of a network`)
  const password = passwordFor(context)
  const { explanations, more } = isAddress
    ? { explanations: [await askDaemon(operator, { ...QUESTIONS.address(network, target), password })], more: 0 }
    : await explainInstance(operator, password, target).catch((error: unknown) => suggestCode(error, target))
  const id = explanations.find(({ instance }) => instance !== undefined)?.instance?.id
  const steps = id === undefined ? [] : await stepsTo(context, id)
  for (const one of explanations) {
    const path = steps?.filter(({ address = one.address }) => address === one.address)
    if (output.json)
      output.printJson({
        ...one,
        ...(path !== undefined && { path: path.map(({ name, finding }) => ({ step: name, ...finding })) }),
      })
    else {
      const { title, rows } = formatExplanation(one, path, Date.now())
      output.rows([[title]])
      output.rows(rows)
    }
  }
  if (more > 0) output.warn(`${target} has ${more} more addresses: explain one of them by itself`)
}

/** The place of the operators' listener that a hypervisor's daemon announces in the store. */
export async function operatorOf({ store }: Context, hypervisor: string): Promise<string> {
  const announced = await withStore(store, (publisher) => publisher.hypervisors())
  const found = announced.find(({ name }) => name === hypervisor)
  if (found === undefined)
    throw new CommandFailure(
      EXIT.notFound,
      `no daemon has announced hypervisor ${hypervisor}: imdsctl hypervisors lists them`,
    )
  if (found.operator === undefined)
    throw new CommandFailure(
      EXIT.unavailable,
      `the daemon of ${hypervisor} announces no listener that others can reach: set IMDS_OPERATOR_LISTEN there to one ` +
        'address of its management network, and IMDS_OPERATOR_ALLOW to this one; or run imdsctl explain there',
    )
  return found.operator
}

/** The password for the TCP listener; undefined for the unix socket, which needs none. */
function passwordFor({ operator, passwordFile = '' }: ExplainContext): string | undefined {
  if (passwordFile === '' || parseUnixSocket(operator) !== undefined) return undefined
  try {
    return readSecretFile(passwordFile)
  } catch (error) {
    throw new CommandFailure(EXIT.noInput, `IMDS_OPERATOR_PASSWORD_FILE: ${(error as Error).message}`)
  }
}

/** Throws an error again: if the id resembles the name of a code or an alert, with that. */
function suggestCode(error: unknown, id: string): never {
  const meant = nearestCode(id)
  if (!(error instanceof CommandFailure) || meant === undefined) throw error
  throw new CommandFailure(error.status, `${error.message}. Did you mean imdsctl explain ${meant}?`, error.details)
}

async function explainInstance(
  operator: string,
  password: string | undefined,
  id: string,
): Promise<{ readonly explanations: readonly Explanation[]; readonly more: number }> {
  const { revision, reason, addresses, more } = await askDaemon(operator, { ...QUESTIONS.addresses(id), password })
  if (revision === undefined) {
    const why = reason === undefined ? '' : `: ${reason}`
    throw new CommandFailure(EXIT.notFound, `the daemon at ${operator} does not serve ${id}${why}`, { id })
  }
  if (addresses.length === 0) {
    const message = `the record of ${id} has no address: explain one of its prefixes, if it has any`
    throw new CommandFailure(EXIT.notFound, message, { id })
  }
  return { explanations: addresses, more }
}

/** The steps of the paths to an instance; undefined if the daemon is not on this hypervisor. */
async function stepsTo(context: ExplainContext, id: string): Promise<readonly Step[] | undefined> {
  if (parseUnixSocket(context.operator) === undefined) return undefined
  const unknown = (reason: string): Step[] => [
    { name: 'link', address: undefined, finding: warning(`not checked: ${reason}`, 'imdsctl doctor says more') },
  ]
  const look = (await import('./doctor/hypervisor.ts')).lookAtHypervisor(context)
  if (!look.ok) return unknown(look.faults.join())
  const document = await look.value.firewall()
  if (!document.ok) return unknown(document.faults.join())
  const guests = document.value.guests.filter((guest) => guest.id === id)
  const paths = await findPaths(look.value, document.value, guests)
  return paths === undefined
    ? [{ name: 'link', address: undefined, finding: NOT_LOOKED_AT }]
    : paths.flatMap(({ steps }) => steps)
}

/** An explanation: its title, and what is known besides as rows. `path` undefined: it was not looked at. */
export function formatExplanation(
  { network, address, answer, status, because, ...explanation }: Explanation,
  path: readonly Step[] | undefined,
  nowMs: number,
): { readonly title: Cell; readonly rows: (readonly Cell[])[] } {
  const { instance, sessionTokens, userData, hopLimit, firewall, packets, listener, store, requests } = explanation
  const code = status === undefined ? '' : ` (${status})`
  const problem = (text: string | undefined) => text && { text, style: STYLES.failure }
  const facts: readonly (readonly [string, Cell | undefined])[] = [
    ['instance', instance && `${instance.id}, revision ${instance.revision}, on ${instance.hypervisors.join(', ')}`],
    ['session tokens', sessionTokens],
    ['user-data', userData],
    ['hop limit', hopLimit && `${hopLimit.limit}, ${hopLimit.enforced ? '' : 'not '}enforced by the firewall`],
    ...(path ?? []).map(stepRow),
    [
      'path',
      path === undefined && instance !== undefined ? 'run imdsctl explain on the hypervisor to see it' : undefined,
    ],
    ['packets', packets && formatPackets(packets)],
    ['firewall', problem(firewall)],
    ['listener', problem(listener)],
    ['store', problem(store)],
    ...(requests ?? []).map((one) => ['request', formatRequest(one, nowMs)] as const),
    ['request', requests?.length === 0 ? 'none since the daemon started, or since it came here' : undefined],
  ]
  return {
    title: {
      text: `${address} on network ${network}: ${answer}${code}, since ${because}`,
      style: answer === 'metadata' ? STYLES.ok : STYLES.failure,
    },
    rows: facts.flatMap(([name, cell]) => (cell === undefined ? [] : [[name, cell]])),
  }
}

function stepRow({ name, finding }: Step): readonly [string, Cell] {
  const text = formatFinding(finding)
  return [name, finding.state === 'ok' ? text : { text, style: STYLES[finding.state] }]
}

/** `user-data, 3 s ago: 403 forwarded; 2 in all; "Cloud-Init/25.1"`. The output escapes control characters. */
function formatRequest({ topic, at, status, reason, userAgent, count }: AskedFor, nowMs: number): string {
  const agent = userAgent === undefined ? '' : `; ${JSON.stringify(userAgent)}`
  return `${topic}, ${formatAgo(at, nowMs)}: ${status} ${reason}; ${count} in all${agent}`
}

/** `admitted 120; dropped: unknown-peers 3, strays 1 (all guests of the hypervisor)`. */
function formatPackets({ admitted = 0, ...dropped }: Readonly<Record<string, number>>): string {
  const drops = Object.entries(dropped).filter(([, count]) => count > 0)
  const text = drops.length === 0 ? 'none' : drops.map(([reason, count]) => `${reason} ${count}`).join(', ')
  return `admitted ${admitted}; dropped ${text} (all guests of the hypervisor)`
}
