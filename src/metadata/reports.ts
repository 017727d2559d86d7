/**
 * What a guest reports about itself (contract H9): a claim, never identity. The bodies of reports are parsed here, and
 * the last report of each name is kept in one document, whose JSON has a bound.
 */
import type { Parsed } from './parsed.ts'
import { isTime } from './time.ts'

/** The most bytes of a body, and of the JSON of all reports of an instance. */
export const MAX_REPORTS_BYTES = 16_384
const MAX_ATTRIBUTES = 64
const MAX_ATTRIBUTE_BYTES = 1_024
const MAX_HOST_KEYS = 16
/** The clocks of two hypervisors differ by less. */
const MAX_CLOCK_DIFFERENCE_MS = 24 * 3_600_000

/** `revision`: that of the document when it came. `receivedAt`: in ISO 8601, by the clock of the hypervisor. */
interface Received {
  readonly revision: number
  readonly receivedAt: string
}
/** `value` empty: the guest has removed the attribute. That is kept, because the store may still have the former value. */
export interface AttributeReport extends Received {
  readonly value: string
}

/** The last reports of a guest. `revision` grows with each report, and is at least the time in ms since 1970. */
export interface Reports {
  readonly revision: number
  /** `time`: as the guest says it, in RFC 3339. */
  readonly boot?: (Received & { readonly phase: string; readonly time?: string | undefined }) | undefined
  /** `keys`: as `TYPE BASE64`. */
  readonly sshHostKeys?: (Received & { readonly keys: readonly string[] }) | undefined
  readonly attributes: ReadonlyMap<string, AttributeReport>
}

export const NO_REPORTS: Reports = Object.freeze({ revision: 0, attributes: new Map<string, never>() })

/** What a path below `/latest/reports/` takes. */
export type ReportName =
  | { readonly kind: 'boot' | 'ssh-host-keys' | 'phone-home' }
  | { readonly kind: 'attribute'; readonly name: string }

const ATTRIBUTE = /^reports\/attributes\/([A-Za-z0-9][A-Za-z0-9._-]{0,63})$/
const NAMES: ReadonlyMap<string, ReportName> = new Map(
  (['boot', 'ssh-host-keys', 'phone-home'] as const).map((kind) => [`reports/${kind}`, { kind }]),
)

/** Parses a path below `latest/`; undefined: there is no such report. */
export function parseReportName(path: string): ReportName | undefined {
  const name = ATTRIBUTE.exec(path)?.[1]
  return name === undefined ? NAMES.get(path) : { kind: 'attribute', name }
}

/**
 * The reports after another one; `malformed` and `too-large`: it is not accepted. `ignored`: the types of SSH host keys
 * that are not kept.
 */
export type Reported =
  | { readonly kind: 'reported'; readonly reports: Reports; readonly ignored: readonly string[] }
  | { readonly kind: 'malformed' | 'too-large' }

/** Adds a report, whose body the guest sent. `receivedAt`: in ISO 8601. */
export function addReport(before: Reports, name: ReportName, body: Uint8Array, receivedAt: string): Reported {
  if (body.length > MAX_REPORTS_BYTES) return { kind: 'too-large' }
  const text = decode(body)
  if (text === undefined) return { kind: 'malformed' }
  const received = { revision: Math.max(before.revision + 1, Date.parse(receivedAt)), receivedAt }
  const parsed = parseBody(before, name, text, received)
  if (!parsed.ok) return { kind: parsed.faults[0]! }
  const { ignored = [], ...parts } = parsed.value
  const reports = fitted({ ...before, ...parts, revision: received.revision })
  return reports === undefined ? { kind: 'too-large' } : { kind: 'reported', reports, ignored }
}

/** Reports without the attributes that the guest has removed. */
export function withoutRemoved(reports: Reports): Reports {
  return { ...reports, attributes: new Map([...reports.attributes].filter(([, { value }]) => value !== '')) }
}

/**
 * Adds stored reports to those of a daemon. A daemon's report is newer if it came in this life of the daemon, which its
 * revision above `sinceRevision` shows; otherwise the higher revision is newer. So no restart brings an old report back.
 */
export function mergeReports(ours: Reports, sinceRevision: number, stored: Reports): Reports {
  const revision = Math.max(ours.revision, stored.revision) + 1
  return joined(ours, stored, revision, (mine, theirs) =>
    mine.revision > sinceRevision ? { ...mine, revision } : later(mine, theirs),
  )
}

/** All that two hypervisors have stored of one guest. */
export function joinReports(some: Reports, more: Reports): Reports {
  return joined(some, more, Math.max(some.revision, more.revision), later)
}

const later = <T extends Received>(one: T, other: T | undefined): T =>
  other !== undefined && other.revision > one.revision ? other : one

/** Joins two documents. `theirs` for which there is no room are left out. */
function joined(
  ours: Reports,
  theirs: Reports,
  revision: number,
  choose: <T extends Received>(mine: T, theirs: T | undefined) => T,
): Reports {
  const pick = <T extends Received>(mine: T | undefined, other: T | undefined) =>
    mine === undefined ? other : choose(mine, other)
  const names = new Set([...ours.attributes.keys(), ...theirs.attributes.keys()])
  const attributes = [...names].flatMap((name) => {
    const attribute = pick(ours.attributes.get(name), theirs.attributes.get(name))
    return attribute === undefined ? [] : [[name, attribute] as const]
  })
  const all = {
    revision,
    boot: pick(ours.boot, theirs.boot),
    sshHostKeys: pick(ours.sshHostKeys, theirs.sshHostKeys),
    attributes: new Map(attributes),
  }
  return fitted(all) ?? { ...ours, revision }
}

/** Reports within their limits, if need be without the oldest removals; undefined: they are too many or too long. */
function fitted(reports: Reports): Reports | undefined {
  const attributes = new Map(reports.attributes)
  let bytes = Buffer.byteLength(JSON.stringify(storedForm(reports)))
  for (const [name, report] of [...attributes].sort(([, a], [, b]) => a.revision - b.revision)) {
    if (bytes <= MAX_REPORTS_BYTES && attributes.size <= MAX_ATTRIBUTES) break
    if (report.value !== '') continue
    attributes.delete(name)
    bytes -= Buffer.byteLength(JSON.stringify({ [name]: report })) - 2
  }
  return bytes > MAX_REPORTS_BYTES || attributes.size > MAX_ATTRIBUTES ? undefined : { ...reports, attributes }
}

export function storedForm({ attributes, ...others }: Reports): object {
  return { ...others, attributes: Object.fromEntries(attributes) }
}

/** Checks reports that were stored: undefined: they do not have the form of reports, or are too long. */
export function parseReports(text: string): Reports | undefined {
  if (Buffer.byteLength(text) > MAX_REPORTS_BYTES) return undefined
  try {
    const stored = JSON.parse(text) as Omit<Reports, 'attributes'> & { attributes: Record<string, AttributeReport> }
    const { revision, boot, sshHostKeys } = stored
    const attributes = new Map(Object.entries(stored.attributes))
    const isValid =
      isRevision(revision) &&
      (boot === undefined ||
        (isReceived(boot) &&
          parseBoot(boot.time === undefined ? boot.phase : `${boot.phase} ${boot.time}`) !== undefined)) &&
      (sshHostKeys === undefined ||
        (isReceived(sshHostKeys) &&
          parseHostKeys(sshHostKeys.keys.join('\n'))?.keys.length === sshHostKeys.keys.length)) &&
      [...attributes].every(
        ([name, one]) =>
          ATTRIBUTE.test(`reports/attributes/${name}`) &&
          isReceived(one) &&
          decode(Buffer.from(one.value)) === one.value &&
          Buffer.byteLength(one.value) <= MAX_ATTRIBUTE_BYTES,
      ) &&
      attributes.size <= MAX_ATTRIBUTES
    return isValid ? { revision, boot, sshHostKeys, attributes } : undefined
  } catch {
    return undefined
  }
}

/**
 * Lowers revisions that are far in the future. Another hypervisor may have forged them: no number would be left for
 * later reports.
 */
export function boundRevisions(reports: Reports, nowMs: number): Reports {
  const bound = <T extends { readonly revision: number }>(part: T): T => ({
    ...part,
    revision: Math.min(part.revision, nowMs + MAX_CLOCK_DIFFERENCE_MS),
  })
  const { boot, sshHostKeys, attributes } = reports
  return {
    ...bound(reports),
    boot: boot && bound(boot),
    sshHostKeys: sshHostKeys && bound(sshHostKeys),
    attributes: new Map([...attributes].map(([name, one]) => [name, bound(one)])),
  }
}

function isReceived({ revision, receivedAt }: Received): boolean {
  return isRevision(revision) && new Date(receivedAt).toISOString() === receivedAt
}

function isRevision(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) >= 0
}

type Fault = 'malformed' | 'too-large'
const MALFORMED: Parsed<never, Fault> = { ok: false, faults: ['malformed'] }
const TOO_LARGE: Parsed<never, Fault> = { ok: false, faults: ['too-large'] }

function parseBody(
  { attributes }: Reports,
  name: ReportName,
  text: string,
  received: Received,
): Parsed<Partial<Reports> & { readonly ignored?: readonly string[] }, Fault> {
  switch (name.kind) {
    case 'boot': {
      const boot = parseBoot(text)
      return boot === undefined ? MALFORMED : { ok: true, value: { boot: { ...boot, ...received } } }
    }
    case 'ssh-host-keys': {
      const { keys, ignored } = parseHostKeys(text) ?? NO_KEYS
      if (keys.length + ignored.length === 0) return MALFORMED
      return { ok: true, value: { sshHostKeys: { keys, ...received }, ignored } }
    }
    case 'phone-home': {
      const boot = { phase: 'done', ...received }
      const values = phoneHomeKeys(text)
      if (values.length === 0) return { ok: true, value: { boot } }
      const parsed = parseHostKeys(values.filter((value) => value !== 'N/A').join('\n'))
      if (parsed === undefined) return MALFORMED
      return { ok: true, value: { boot, sshHostKeys: { keys: parsed.keys, ...received }, ignored: parsed.ignored } }
    }
    case 'attribute': {
      if (Buffer.byteLength(text) > MAX_ATTRIBUTE_BYTES) return TOO_LARGE
      return { ok: true, value: { attributes: new Map(attributes).set(name.name, { value: text, ...received }) } }
    }
  }
}

const BOOT = /^([a-z][a-z0-9-]{0,31})(?: (\S+))?$/

/** A phase, such as `done`, and the guest's time, in RFC 3339. */
function parseBoot(text: string): { phase: string; time: string | undefined } | undefined {
  const [, phase, time] = BOOT.exec(text.trim()) ?? []
  if (phase === undefined || (time !== undefined && !isTime(time))) return undefined
  return { phase, time }
}

/** The values for keys of cloud-init's phone_home, which sends `N/A` for one that the guest does not have. */
function phoneHomeKeys(form: string): readonly string[] {
  return [...new URLSearchParams(form)]
    .filter(([field]) => field.startsWith('pub_key_'))
    .map(([, value]) => value.trim())
}

const TYPES: ReadonlySet<string> = new Set([
  'ssh-ed25519',
  'ssh-rsa',
  ...['256', '384', '521'].map((bits) => `ecdsa-sha2-nistp${bits}`),
])
/** A line of a known_hosts file, or of a public key file, which has no host. */
const HOST_KEY = /^(?:\S+ )?([a-z][a-z0-9@.-]{0,63}) (AAAA[A-Za-z0-9+/]+={0,2})(?: \P{Cc}*)?$/u

/** `keys`: as `TYPE BASE64`. `ignored`: the types of the others, which are not known. */
interface HostKeys {
  readonly keys: readonly string[]
  readonly ignored: readonly string[]
}
const NO_KEYS: HostKeys = { keys: [], ignored: [] }

/** Undefined: a line is not a key, or there are too many. */
function parseHostKeys(text: string): HostKeys | undefined {
  const [keys, ignored] = [new Set<string>(), new Set<string>()]
  for (const line of text.split('\n').map((one) => one.trim())) {
    if (line === '' || line.startsWith('#')) continue
    const [, type = '', base64 = ''] = HOST_KEY.exec(line) ?? []
    if (type === '' || !isKeyOf(type, Buffer.from(base64, 'base64'))) return undefined
    if (TYPES.has(type)) keys.add(`${type} ${base64}`)
    else ignored.add(type)
  }
  return keys.size + ignored.size > MAX_HOST_KEYS ? undefined : { keys: [...keys], ignored: [...ignored] }
}

/** Whether the first part of a key is its type, after its length (RFC 4253, 6.6). */
function isKeyOf(type: string, key: Buffer): boolean {
  const end = 4 + type.length
  return key.length > end && key.readUInt32BE() === type.length && key.toString('latin1', 4, end) === type
}

const CONTROL = /[^\P{Cc}\t\n\r]/u

/** Text without control characters besides tab and line breaks; undefined: it is not such UTF-8. */
function decode(body: Uint8Array): string | undefined {
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(body)
    return CONTROL.test(text) ? undefined : text
  } catch {
    return undefined
  }
}
