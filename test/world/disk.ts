/**
 * The disk of a hypervisor: one directory of files that are written from their beginnings, by the port `Disk`.
 *
 * - A kill leaves operations that were under way done, not done or, for a write, done in part.
 * - A power cut also takes back what was not flushed: the end of a file is missing, or has zeros. Of the changes of names
 *   since the directory was flushed, the first ones stay, or any of them.
 * - The disk may be full, may hang, may delete nothing, or may change a bit of a file.
 *
 * A start reads by node:fs: it gets real files. So does the directory in memory (/run), which a power cut empties.
 */
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { DISK, type Disk, type DiskFile } from '../../src/imdsd/journal/disk.ts'
import type { Process, Time } from './time.ts'

/** For the files that a start of a daemon reads. The daemons get relative paths, so that each run logs the same. */
const root = mkdtempSync(join(tmpdir(), 'imds-world-'))
process.chdir(root)
process.on('exit', () => rmSync(root, { recursive: true }))

/** A file. Of `bytes`, the first `durable` are flushed. */
class Inode {
  bytes: Buffer = Buffer.alloc(0)
  durable = 0
  isDamaged = false

  sync(): void {
    this.durable = this.bytes.length
  }
}

type Names = Map<string, Inode>
interface Operation {
  readonly of: Process
  /** What it does; with a share below 1, only that share of a write. */
  readonly effect: (share: number) => unknown
}

function errorOf(code: string): NodeJS.ErrnoException {
  return Object.assign(new Error(code), { code })
}

export class SimulatedDisk implements Disk {
  readonly #time: Time
  /** A directory in memory. */
  readonly memory: string
  #names: Names = new Map()
  #durable: Names = new Map()
  /** Changes of names since the directory was flushed. */
  #renames: ((names: Names) => void)[] = []
  readonly #pending = new Set<Operation>()
  isFull = false
  isHanging = false
  /** How long an operation takes, besides a millisecond or so, at most. */
  slowMs = 0
  /** Its directory cannot be changed: no file is created, renamed or deleted. */
  isProtected = false
  /** When the disk last failed to do what it should. */
  troubledAtMs = -Infinity
  /** Counts down to a crash in the middle of an operation. */
  #armed: { left: number; readonly crash: () => void } | undefined
  #isCalm = false

  constructor(time: Time, memory: string) {
    this.#time = time
    this.memory = memory
    this.#emptyMemory()
  }

  /** Puts the files into a real directory for a start, which may delete some of them, and flushes the journal. */
  async lend<T>(directory: string, start: () => Promise<T>): Promise<T> {
    rmSync(directory, { recursive: true, force: true })
    mkdirSync(directory)
    for (const [name, { bytes }] of this.#names) writeFileSync(join(directory, name), bytes)
    const noteDeleted = () => {
      const left = readdirSync(directory)
      for (const name of this.#names.keys()) if (!left.includes(name)) this.#rename((names) => void names.delete(name))
    }
    const syncDirectory = async () => {
      noteDeleted()
      this.#syncNames()
      await Promise.resolve()
    }
    const remove = (path: string) => {
      this.#failIf(this.isProtected, 'EPERM')
      rmSync(path, { force: true })
      return Promise.resolve()
    }
    Object.assign(DISK, { syncDirectory, remove }) // which the start calls
    const journal = this.#names.get('view.journal')
    const result = await start()
    journal?.sync() // also if it is deleted: a power cut may bring it back
    noteDeleted()
    return result
  }

  /** Calls `crash` when the n-th operation from now is under way. */
  arm(n: number, crash: () => void): void {
    if (!this.#isCalm) this.#armed = { left: n, crash }
  }

  /** Nothing fails any more. */
  calm(): void {
    this.#isCalm = true
    this.#armed = undefined
    this.isFull = this.isHanging = this.isProtected = false
    this.slowMs = 0
  }

  /** A process was killed. */
  kill(process: Process): void {
    const { dice } = this.#time
    this.#armed = undefined
    for (const operation of this.#pending) {
      if (operation.of !== process) continue
      this.#pending.delete(operation)
      if (dice.chance(0.5)) continue
      try {
        operation.effect(dice.chance(0.5) ? 1 : dice.below(100) / 100)
      } catch {
        /* its process has ended */
      }
    }
  }

  /** The power failed, after the processes were killed. */
  cutPower(): void {
    const { dice } = this.#time
    this.#emptyMemory()
    // ext4 and XFS keep the order; POSIX and btrfs do not
    const first = dice.below(this.#renames.length + 1)
    const isKept = dice.chance(0.5) ? (_change: unknown, n: number) => n < first : () => dice.chance(0.5)
    for (const change of this.#renames.filter(isKept)) change(this.#durable)
    this.#renames = []
    this.#names = new Map(this.#durable)
    for (const inode of this.#names.values()) {
      const lost = inode.bytes.length - inode.durable
      if (lost > 0) {
        const end = inode.durable + dice.below(lost + 1)
        const bytes = Buffer.from(inode.bytes.subarray(0, dice.chance(0.3) ? inode.bytes.length : end))
        bytes.fill(0, end)
        inode.bytes = bytes
      }
      inode.sync()
    }
  }

  /**
   * Changes a bit of the journal at rest: not before the byte after its last frame is written, since a start takes that
   * frame for torn. False: there is no such journal.
   */
  flipBit(): boolean {
    const { dice } = this.#time
    const inode = this.#names.get('view.journal')
    if (inode === undefined || inode.bytes.length - inode.durable !== 1 || this.#pending.size > 0) return false
    const at = dice.below(inode.bytes.length)
    inode.bytes[at]! ^= 1 << dice.below(8)
    inode.isDamaged = true
    this.troubledAtMs = this.#time.nowMs
    return true
  }

  get isFailing(): boolean {
    return this.isFull || this.isHanging || this.isProtected
  }

  get hasDamage(): boolean {
    return [...this.#names.values()].some(({ isDamaged }) => isDamaged)
  }

  /** The number of files, and their bytes. */
  get size(): { readonly files: number; readonly bytes: number } {
    const bytes = [...this.#names.values()].reduce((sum, inode) => sum + inode.bytes.length, 0)
    return { files: this.#names.size, bytes }
  }

  readonly makeDirectory = (): Promise<unknown> => this.#do(() => undefined)

  readonly create = (path: string): Promise<DiskFile> =>
    this.#do(() => {
      this.#failIf(this.isFull, 'ENOSPC')
      this.#failIf(this.isProtected, 'EPERM')
      const inode = new Inode()
      this.#rename((names) => void names.set(basename(path), inode))
      return this.#fileOf(inode)
    })

  readonly rename = (from: string, to: string): Promise<void> =>
    this.#do(() => {
      const inode = this.#inodeOf(from)
      this.#failIf(this.isProtected, 'EPERM')
      this.#rename((names) => {
        names.delete(basename(from))
        names.set(basename(to), inode)
      })
    })

  readonly remove = (path: string): Promise<void> =>
    this.#do(() => {
      this.#failIf(this.isProtected, 'EPERM')
      if (this.#names.has(basename(path))) this.#rename((names) => void names.delete(basename(path)))
    })

  readonly sizeOf = (path: string): Promise<number | undefined> =>
    this.#do(() => this.#names.get(basename(path))?.bytes.length)

  readonly syncDirectory = (): Promise<void> => this.#do(() => this.#syncNames())

  #fileOf(inode: Inode): DiskFile {
    const file = {
      writeFile: (data: Uint8Array) =>
        this.#do((share) => {
          const whole = this.isFull ? Math.min(share, this.#time.dice.below(100) / 100) : share
          inode.bytes = Buffer.concat([inode.bytes, data.subarray(0, Math.floor(data.length * whole))])
          this.#failIf(this.isFull, 'ENOSPC')
        }, true),
      datasync: () => this.#do(() => inode.sync(), true),
      close: () => this.#do(() => undefined),
    }
    return file
  }

  #do<T>(effect: (share: number) => T, mayHang = false): Promise<T> {
    const time = this.#time
    const { promise, resolve, reject } = Promise.withResolvers<T>()
    const operation: Operation = { of: time.current, effect }
    this.#pending.add(operation)
    const hang = this.isHanging && mayHang ? 4_000 + time.dice.below(30_000) : 0
    time.after(hang + time.dice.below(this.slowMs) + time.latencyMs() / 4, () => {
      if (this.#armed !== undefined && --this.#armed.left <= 0) {
        this.#armed.crash()
        return
      }
      this.#pending.delete(operation)
      try {
        resolve(effect(1))
      } catch (error) {
        reject(error)
      }
    })
    return promise
  }

  #emptyMemory(): void {
    rmSync(this.memory, { recursive: true, force: true })
    mkdirSync(this.memory)
  }

  #syncNames(): void {
    this.#renames = []
    this.#durable = new Map(this.#names)
  }

  #rename(change: (names: Names) => void): void {
    change(this.#names)
    this.#renames.push(change)
  }

  #inodeOf(path: string): Inode {
    const inode = this.#names.get(basename(path))
    if (inode === undefined) throw errorOf('ENOENT')
    return inode
  }

  #failIf(isFailing: boolean, code: 'ENOSPC' | 'EPERM'): void {
    if (!isFailing) return
    this.troubledAtMs = this.#time.nowMs
    throw errorOf(code)
  }
}
