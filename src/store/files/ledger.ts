/**
 * The ledger of a directory, `.publisher.json`: the last revision, the seal and the addresses of each instance, and the
 * stamps of the files that say so.
 *
 * The records contain the same facts, but people edit records. If a record cannot be read, or is gone without a
 * tombstone, daemons serve its last good state, and the ledger protects that state from other publishes. A valid record
 * or tombstone always overrides the ledger. So the ledger may be lost: the next write rebuilds it from the records, and
 * only instances whose records cannot be read at that time are unprotected.
 *
 * A write appends a line, so its cost does not grow with the number of instances. The last line of an id counts:
 *
 *   { "version": 1, "generation": UUID }   the first line: another generation is another file, with other lines
 *   [ID, { ...protection }]                what protects the instance
 *   [ID]                                   a writer begins to change the instance: its files are newer than these lines
 *   [ID, false]                            nothing is left to protect
 *
 * A line that is torn, by a power failure, is ignored, and the file is written anew before the next line.
 */
import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import Type, { type Static } from 'typebox'
import { Compile } from 'typebox/compile'
import { rangesOf, type Instance } from '../../metadata/instance.ts'
import { isId } from '../../metadata/identifiers.ts'
import type { FileOperations } from './operations.ts'
import { openRegularFile, readFrom, type OpenFile } from '../../runtime/regular-file.ts'

const LEDGER = '.publisher.json'
const TEMPORARY = '.publisher.tmp'
const VERSION = 1
/** A million instances have about this much. */
const MAX_BYTES = 512 * 1024 * 1024
/** The file is written anew when it has this many lines more than twice its instances. */
const SPARE_LINES = 1_000

const ProtectionSchema = Type.Object({
  revision: Type.Integer({ minimum: 0 }),
  sealedAt: Type.Optional(Type.String()),
  ranges: Type.Array(Type.Object({ network: Type.String(), range: Type.String() })),
  isRemoved: Type.Boolean(),
  isFaulty: Type.Optional(Type.Boolean()),
  stamp: Type.Optional(Type.String()),
})
const check = Compile(ProtectionSchema)

/**
 * What later publishes must respect. A removed instance owns no address. `isFaulty`: the record in the directory is not
 * valid, and the last good one is protected. `stamp`: that of the files which this was read from (stamps.ts);
 * undefined: they have to be read again.
 */
export type Protection = Static<typeof ProtectionSchema>

/** What a line does. */
export type LedgerLine = readonly [id: string, protection: Protection | false] | readonly [id: string]

/** The protection of an instance whose record is published. */
export function publishedAs(instance: Instance, sealedAt: string | undefined): Protection {
  return {
    revision: instance.revision,
    ...(sealedAt !== undefined && { sealedAt }),
    ranges: rangesOf(instance),
    isRemoved: false,
  }
}

/** The protection of an instance that is removed. */
export function removedAt(revision: number, sealedAt: string | undefined): Protection {
  return { revision, ...(sealedAt !== undefined && { sealedAt }), ranges: [], isRemoved: true }
}

/**
 * The file of a ledger, as one process reads and writes it. Only for writers that hold the lock of the directory, and
 * for readers that write nothing.
 */
export class LedgerFile {
  readonly #directory: string
  readonly #operations: FileOperations
  /**
   * The first line, and the end of the last line that was read. Undefined: nothing was read, or the file is to be
   * written anew.
   */
  #read: { readonly header: string; readonly end: number; readonly lines: number } | undefined
  #wasAbsent = false

  constructor(directory: string, operations: FileOperations) {
    this.#directory = directory
    this.#operations = operations
  }

  /**
   * Reads the lines that are new since the last call. `isWhole`: these are all lines, of another file than before.
   * Rejects when it cannot be read.
   */
  async read(): Promise<{ readonly lines: readonly LedgerLine[]; readonly isWhole: boolean }> {
    const path = join(this.#directory, LEDGER)
    const opened = await openRegularFile(path, 'refuse')
    if (opened.kind === 'not-regular') throw new Error(`${path} is ${opened.what}, not a regular file: delete it`)
    const isStillAbsent = opened.kind === 'absent' && this.#wasAbsent
    this.#wasAbsent = opened.kind === 'absent'
    if (opened.kind === 'absent') {
      this.#read = undefined
      return { lines: [], isWhole: !isStillAbsent }
    }
    try {
      if (opened.length > MAX_BYTES)
        throw new Error(
          `${path} is ${String(opened.length)} bytes, more than the limit of ${String(MAX_BYTES)}: ` +
            'delete it, and it is built from the records',
        )
      return (await this.#follow(opened)) ?? (await this.#readWhole(opened))
    } finally {
      await opened.file.close()
    }
  }

  /** Appends lines. `isDurable`: they are on disk when this resolves. */
  async append(lines: readonly LedgerLine[], isDurable: boolean): Promise<void> {
    const read = this.#read
    if (read === undefined) throw new Error('the ledger has to be written anew')
    this.#read = undefined // until the lines are known to be whole
    const text = lines.map(formatLine).join('')
    await this.#operations.append(join(this.#directory, LEDGER), text, isDurable)
    this.#read = { ...read, end: read.end + Buffer.byteLength(text), lines: read.lines + lines.length }
  }

  /** Makes the next read a whole one. */
  forget(): void {
    this.#read = undefined
    this.#wasAbsent = false
  }

  /**
   * True if the file has to be written anew: it is missing, torn, of another version, or has too many lines for
   * `instances`.
   */
  isToRewrite(instances: number): boolean {
    return this.#read === undefined || this.#read.lines > 2 * instances + SPARE_LINES
  }

  /** Writes the file anew. */
  async rewrite(protections: ReadonlyMap<string, Protection>): Promise<void> {
    const header = `${JSON.stringify({ version: VERSION, generation: randomUUID() })}\n`
    const text = header + [...protections].map(formatLine).join('')
    const temporary = join(this.#directory, TEMPORARY)
    this.#read = undefined
    await this.#operations.create(temporary, text)
    await this.#operations.rename(temporary, join(this.#directory, LEDGER))
    this.#read = { header, end: Buffer.byteLength(text), lines: protections.size }
  }

  async #follow({ file, length }: OpenFile): Promise<{ lines: readonly LedgerLine[]; isWhole: boolean } | undefined> {
    const read = this.#read
    if (
      read === undefined ||
      length < read.end ||
      (await readFrom(file, 0, read.header.length)).toString() !== read.header
    )
      return undefined
    const { lines, isTorn } = parseLines((await readFrom(file, read.end, length - read.end)).toString())
    this.#read = isTorn ? undefined : { ...read, end: length, lines: read.lines + lines.length }
    return { lines, isWhole: false }
  }

  async #readWhole({ file, length }: OpenFile): Promise<{ lines: readonly LedgerLine[]; isWhole: boolean }> {
    const text = (await readFrom(file, 0, length)).toString()
    const header = text.slice(0, text.indexOf('\n') + 1)
    this.#read = undefined
    const { version } = (parseJson(header) ?? {}) as { version?: unknown }
    if (version !== VERSION) return { lines: [], isWhole: true }
    const { lines, isTorn } = parseLines(text.slice(header.length))
    if (!isTorn) this.#read = { header, end: length, lines: lines.length }
    return { lines, isWhole: true }
  }
}

function formatLine(line: LedgerLine): string {
  return `${JSON.stringify(line)}\n`
}

/** Parses lines. `isTorn`: at least one is not whole, and left out. */
function parseLines(text: string): { readonly lines: LedgerLine[]; readonly isTorn: boolean } {
  const texts = text.split('\n')
  const rest = texts.pop()
  const lines = texts.map(parseLine).filter((line) => line !== undefined)
  return { lines, isTorn: rest !== '' || lines.length < texts.length }
}

function parseLine(text: string): LedgerLine | undefined {
  const line = parseJson(text)
  if (!Array.isArray(line) || !isId(line[0])) return undefined
  const [id, protection] = line as [string, unknown]
  if (line.length === 1) return [id]
  if (protection === false) return [id, false]
  return check.Check(protection) ? [id, protection] : undefined
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
