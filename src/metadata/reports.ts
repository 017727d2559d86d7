/**
 * What a guest reports about itself (contract H9): short texts with names, its claims, never identity. The last report of
 * each name is kept in one document, whose JSON has a bound.
 */

/** The most bytes of a body, and of the JSON of all reports of an instance. */
export const MAX_REPORTS_BYTES = 16_384
const MAX_REPORTS = 16
const MAX_TEXT_BYTES = 4_096
/** The clocks of two hypervisors differ by less. */
const MAX_CLOCK_DIFFERENCE_MS = 24 * 3_600_000

/**
 * One report. `revision`: that of the document when it came. `receivedAt`: in ISO 8601, by the clock of the hypervisor.
 * `text` empty: the guest has removed it. That is kept, because the store may still have the former text.
 */
export interface Report {
  readonly text: string
  readonly revision: number
  readonly receivedAt: string
}

/** The last reports of a guest. `revision` grows with each report, and is at least the time in ms since 1970. */
export interface Reports {
  readonly revision: number
  readonly byName: ReadonlyMap<string, Report>
}

export const NO_REPORTS: Reports = Object.freeze({ revision: 0, byName: new Map<string, never>() })

/** The name whose body is a form with a report in each field. */
export const PHONE_HOME = 'phone-home'

const NAME = /^[A-Za-z0-9._-]{1,64}$/

/** Parses a path below `latest/`; undefined: there is no such report. */
export function parseReportName(path: string): string | undefined {
  const name = path.slice('reports/'.length)
  return NAME.test(name) ? name : undefined
}

/** The reports after a new report; `malformed` and `too-large`: it is not accepted. */
export type Reported =
  | { readonly kind: 'reported'; readonly reports: Reports }
  | { readonly kind: 'malformed' | 'too-large' }

/** Adds a report, whose body the guest sent, or all those of a form, or none. `receivedAt`: in ISO 8601. */
export function addReport(before: Reports, name: string, body: Uint8Array, receivedAt: string): Reported {
  if (body.length > MAX_REPORTS_BYTES) return { kind: 'too-large' }
  const decoded = decode(body)
  if (decoded === undefined) return { kind: 'malformed' }
  const texts = name === PHONE_HOME ? [...new URLSearchParams(decoded)] : [[name, decoded] as const]
  if (texts.length === 0 || texts.some(([field, text]) => !NAME.test(field) || CONTROL.test(text)))
    return { kind: 'malformed' }
  if (texts.some(([, text]) => Buffer.byteLength(text) > MAX_TEXT_BYTES)) return { kind: 'too-large' }
  const revision = Math.max(before.revision + 1, Date.parse(receivedAt))
  const byName = new Map(before.byName)
  for (const [field, text] of texts) byName.set(field, { text, revision, receivedAt })
  const reports = fitted({ revision, byName })
  return reports === undefined ? { kind: 'too-large' } : { kind: 'reported', reports }
}

/** Reports without those that the guest has removed. */
export function withoutRemoved({ revision, byName }: Reports): Reports {
  return { revision, byName: new Map([...byName].filter(([, { text }]) => text !== '')) }
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

function later(report: Report, other: Report | undefined): Report {
  return other !== undefined && other.revision > report.revision ? other : report
}

/** Joins two documents. `theirs` for which there is no room are left out. */
function joined(
  ours: Reports,
  theirs: Reports,
  revision: number,
  choose: (mine: Report, theirs: Report | undefined) => Report,
): Reports {
  const byName = new Map(theirs.byName)
  for (const [name, mine] of ours.byName) byName.set(name, choose(mine, byName.get(name)))
  return fitted({ revision, byName }) ?? { ...ours, revision }
}

/** Reports within their limits, if need be without the oldest removals; undefined: they are too many or too long. */
function fitted(reports: Reports): Reports | undefined {
  const byName = new Map(reports.byName)
  let bytes = Buffer.byteLength(JSON.stringify(storedForm(reports)))
  for (const [name, report] of [...byName].sort(([, a], [, b]) => a.revision - b.revision)) {
    if (bytes <= MAX_REPORTS_BYTES && byName.size <= MAX_REPORTS) break
    if (report.text !== '') continue
    byName.delete(name)
    bytes -= Buffer.byteLength(JSON.stringify({ [name]: report })) - 2
  }
  return bytes > MAX_REPORTS_BYTES || byName.size > MAX_REPORTS ? undefined : { ...reports, byName }
}

export function storedForm({ revision, byName }: Reports): object {
  return { revision, reports: Object.fromEntries(byName) }
}

/** Checks reports that were stored: undefined: they do not have the form of reports, or are too long. */
export function parseReports(stored: string): Reports | undefined {
  if (Buffer.byteLength(stored) > MAX_REPORTS_BYTES) return undefined
  try {
    const { revision, reports } = JSON.parse(stored) as { revision: number; reports: Record<string, Report> }
    const byName = new Map(Object.entries(reports))
    const isValid =
      isRevision(revision) &&
      byName.size <= MAX_REPORTS &&
      [...byName].every(
        ([name, report]) =>
          NAME.test(name) &&
          isRevision(report.revision) &&
          new Date(report.receivedAt).toISOString() === report.receivedAt &&
          decode(Buffer.from(report.text)) === report.text &&
          Buffer.byteLength(report.text) <= MAX_TEXT_BYTES,
      )
    return isValid ? { revision, byName } : undefined
  } catch {
    return undefined
  }
}

/**
 * Lowers revisions that are far in the future. Another hypervisor may have forged them: no number would be left for
 * later reports.
 */
export function boundRevisions({ revision, byName }: Reports, nowMs: number): Reports {
  const bound = (value: number) => Math.min(value, nowMs + MAX_CLOCK_DIFFERENCE_MS)
  return {
    revision: bound(revision),
    byName: new Map([...byName].map(([name, report]) => [name, { ...report, revision: bound(report.revision) }])),
  }
}

function isRevision(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) >= 0
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

/** A line of a known_hosts file, or of a public key file, which has no host. */
const HOST_KEY = /^(?:\S+ )?([a-z][a-z0-9@.-]{0,63}) (AAAA[A-Za-z0-9+/]+={0,2})(?: \P{Cc}*)?$/u

/** The public SSH keys in a text that has one on each line, each as `TYPE BASE64`. */
export function sshKeysIn(text: string): string[] {
  return text.split('\n').flatMap((line) => {
    const [, type = '', base64 = ''] = HOST_KEY.exec(line.trim()) ?? []
    return type !== '' && isKeyOf(type, Buffer.from(base64, 'base64')) ? [`${type} ${base64}`] : []
  })
}

/** Whether the first part of a key is its type, after its length (RFC 4253, 6.6). */
function isKeyOf(type: string, key: Buffer): boolean {
  const end = 4 + type.length
  return key.length > end && key.readUInt32BE() === type.length && key.toString('latin1', 4, end) === type
}
