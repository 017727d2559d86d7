/**
 * What a writer knows of a directory: the protection of each instance (ledger.ts), and who owns which address.
 *
 * Reading every file before each write would cost more with each instance. So three things keep the catalog true:
 *
 *   the ledger      each writer appends what it changes, and first the id that it begins to change; a refresh reads the
 *                   new lines
 *   a survey        compares the stamps of all files, and reads those that changed: people edit records. At most once a
 *                   second
 *   a look          compares the stamps of one instance, before each write: of the one that is written, and of the one
 *                   that owns its address
 *
 * So a record that was edited by hand counts at once for writes of its own instance, and its new addresses count for
 * other instances within a second (if comparing all stamps takes long, within SURVEY_RATIO times as long). Meanwhile
 * both records could claim an address: then no daemon serves it (invariant 7).
 */
import { join } from 'node:path'
import { rangesOf, type Instance } from '../../metadata/instance.ts'
import { forEachOf } from '../../limits/for-each-of.ts'
import { TurnBudget } from '../../limits/turn-budget.ts'
import { LedgerFile, type LedgerLine, type Protection } from './ledger.ts'
import type { FileOperations } from './operations.ts'
import { Owners, type Range } from './owners.ts'
import { protectionOf } from './protection.ts'
import { ifThere } from '../../runtime/regular-file.ts'
import { listFiles, lookUpStampsSync, type Stamps } from './stamps.ts'

/** The longest time that a survey's result is used. */
const SURVEY_MS = 1_000
/** Comparing stamps takes at most one part in so many of the time. */
const SURVEY_RATIO = 5
/** Instances whose files are read at the same time: a bound on memory, since each may have the longest user-data. */
const READ_AT_ONCE = 4
/** How long a tombstone stays, as in Redis (publish.lua). */
const TOMBSTONE_MS = 7 * 24 * 3600 * 1000

/**
 * The endings of an instance's files, in the order of their names. User-data counts only if the record is faulty: it
 * may be what is wrong.
 */
const ENDINGS = ['.json', '.pending', '.removed', '.user-data', '.yaml', '.yml']

/** How a writer finishes the changes of others. `apply` resolves with false if there is none. */
export interface Recovery {
  readonly apply: (id: string) => Promise<boolean>
  readonly finish: (id: string) => Promise<void>
}

/** The catalog of one process, between its writes. Not for two tasks at the same time. */
export class Catalog {
  readonly #directory: string
  readonly #operations: FileOperations
  readonly #ledger: LedgerFile
  readonly #now: () => number
  #protections = new Map<string, Protection>()
  #owners = new Owners()
  /** Ids that a writer began to change and did not finish. */
  readonly #begun = new Set<string>()
  /** What the ledger does not have yet. */
  readonly #unsaved = new Set<string>()
  /** When the next survey is due, in milliseconds of `performance.now()`. */
  #surveyAtMs = 0

  /** `now`: Unix time in milliseconds, for the age of tombstones. */
  constructor(directory: string, operations: FileOperations, now: () => number) {
    this.#directory = directory
    this.#operations = operations
    this.#ledger = new LedgerFile(directory, operations)
    this.#now = now
  }

  /**
   * Brings the catalog in line with the directory, and finishes the changes that other writers did not finish. Without
   * a `recovery`, writes nothing. Rejects when the ledger, or the record of an instance that it does not have, cannot
   * be read.
   */
  async refresh(recovery: Recovery | undefined): Promise<void> {
    const { lines, isWhole } = await this.#ledger.read()
    if (isWhole) this.#reset()
    for (const line of lines) this.#apply(line)
    const files = performance.now() >= this.#surveyAtMs ? await this.#files() : undefined
    const pending = [...(files ?? [])].filter(([, endings]) => endings.includes('.pending')).map(([id]) => id)
    // by a writer that may have been killed before it removed its pending file
    const written = isWhole ? [] : lines.map(([id]) => id)
    const applied: string[] = []
    for (const id of new Set([...this.#begun, ...pending, ...written]))
      if ((await recovery?.apply(id)) === true) applied.push(id)
    if (files !== undefined)
      await this.#survey(applied.length === 0 ? files : await this.#files(), recovery !== undefined)
    else for (const id of new Set([...this.#begun, ...applied])) await this.look(id)
    this.#begun.clear()
    if (recovery === undefined) return
    await this.save()
    for (const id of applied) await recovery.finish(id)
  }

  /** Returns the protection of one instance, by its files as they are now. */
  async look(id: string): Promise<Protection | undefined> {
    const known = this.#protections.get(id)
    const { text } = this.#stamps(id, ENDINGS, known?.isFaulty)
    if (text !== (known === undefined ? '' : known.stamp)) await this.#evaluate(id, ENDINGS)
    return this.#protections.get(id)
  }

  /** The first address of an instance that another one owns. */
  async conflictOf(instance: Instance): Promise<(Range & { readonly owner: string }) | undefined> {
    for (const range of rangesOf(instance)) {
      for (const owner of [...this.#owners.overlapping(range)].sort()) {
        if (owner === instance.id) continue
        await this.look(owner)
        if (this.#owners.overlapping(range).has(owner)) return { ...range, owner }
      }
    }
    return undefined
  }

  /**
   * Notes in the ledger that a change of an instance begins. Not on disk yet when this resolves: after a power failure,
   * a survey finds the change.
   */
  async begin(id: string): Promise<void> {
    await this.#ledger.append([[id]], false)
    this.#begun.add(id)
  }

  /** Notes that the change of an instance is made. Its pending file may be removed when this resolves. */
  async complete(id: string, protection: Protection): Promise<void> {
    await this.#ledger.append([[id, protection]], true)
    this.#set(id, protection)
  }

  /** Writes to the ledger what it lacks. */
  async save(): Promise<void> {
    if (this.#ledger.isToRewrite(this.#protections.size))
      await this.#ledger.rewrite(new Map([...this.#protections].sort()))
    else if (this.#unsaved.size > 0)
      await this.#ledger.append(
        [...this.#unsaved].map((id) => [id, this.#protections.get(id) ?? false]),
        true,
      )
    this.#unsaved.clear()
  }

  /** Forgets everything, after an error: the next refresh reads it again. */
  forget(): void {
    this.#ledger.forget()
    this.#reset()
  }

  #reset(): void {
    this.#protections = new Map()
    this.#owners = new Owners()
    this.#begun.clear()
    this.#unsaved.clear()
    this.#surveyAtMs = 0
  }

  #apply([id, protection]: LedgerLine): void {
    if (protection === undefined) this.#begun.add(id)
    else this.#set(id, protection === false ? undefined : protection)
    this.#unsaved.delete(id)
  }

  #set(id: string, protection: Protection | undefined): void {
    this.#begun.delete(id)
    this.#owners.remove(id, this.#protections.get(id)?.ranges ?? [])
    if (protection === undefined) this.#protections.delete(id)
    else this.#protections.set(id, protection)
    this.#owners.add(id, protection?.ranges ?? [])
  }

  /** Reads every instance whose files changed. Deletes the tombstones that have ended, if it may write. */
  async #survey(files: ReadonlyMap<string, readonly string[]>, writes: boolean): Promise<void> {
    const startedAtMs = performance.now()
    const changed: string[] = []
    const budget = new TurnBudget()
    for (const [id, endings] of files) {
      const known = this.#protections.get(id)
      const stamps = this.#stamps(id, endings, known?.isFaulty)
      const hasEnded = this.#hasEnded(stamps)
      if (hasEnded && writes) await this.#operations.remove(join(this.#directory, `${id}.removed`))
      if (hasEnded || stamps.text !== known?.stamp) changed.push(id)
      await budget.spend(0)
    }
    for (const [id, { stamp }] of this.#protections) if (!files.has(id) && stamp !== '') changed.push(id)
    const comparedMs = performance.now() - startedAtMs // without what is read: the next survey does not read it again
    await forEachOf(changed, (id) => this.#evaluate(id, files.get(id) ?? []), READ_AT_ONCE)
    this.#surveyAtMs = performance.now() + Math.max(SURVEY_MS, SURVEY_RATIO * comparedMs)
  }

  /**
   * Computes the protection of an instance. The stamp is older than what is read, so a change meanwhile is read again.
   */
  async #evaluate(id: string, endings: readonly string[]): Promise<void> {
    const known = this.#protections.get(id)
    const [plain, withUserData] = [this.#stamps(id, endings, false), this.#stamps(id, endings, true)]
    const protection = this.#hasEnded(plain) ? undefined : await protectionOf(this.#directory, id, known)
    const { text, isRecent } = protection?.isFaulty === true ? withUserData : plain
    const next = protection && withStamp(protection, isRecent ? undefined : text)
    if (JSON.stringify(next) !== JSON.stringify(known)) this.#unsaved.add(id)
    this.#set(id, next)
  }

  /** True if an instance has nothing but a tombstone that has ended. */
  #hasEnded({ text, changedAtMs }: Stamps): boolean {
    return /^\.removed:\S+$/.test(text) && changedAtMs < this.#now() - TOMBSTONE_MS
  }

  #stamps(id: string, endings: readonly string[], isFaulty: boolean | undefined): Stamps {
    return lookUpStampsSync(
      this.#directory,
      id,
      isFaulty === true ? endings : endings.filter((ending) => ending !== '.user-data'),
      this.#now(),
    )
  }

  async #files(): Promise<Map<string, string[]>> {
    return (await ifThere(listFiles(this.#directory))) ?? new Map<string, string[]>()
  }
}

function withStamp(
  { revision, sealedAt, ranges, isRemoved, isFaulty }: Protection,
  stamp: string | undefined,
): Protection {
  return {
    revision,
    ...(sealedAt !== undefined && { sealedAt }),
    ranges,
    isRemoved,
    ...(isFaulty === true && { isFaulty }),
    ...(stamp !== undefined && { stamp }),
  }
}
