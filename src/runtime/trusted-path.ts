/**
 * Checks that only root and one other user decide what a path leads to, for a program that trusts what it finds there.
 */
import { lstatSync, type Stats } from 'node:fs'
import { dirname, resolve } from 'node:path'

const STICKY = 0o1000
const WRITABLE_BY_OTHERS = 0o022

/**
 * Why a process of the user `uid` must not trust the unix socket at `path`, or undefined. The socket and its directory
 * must belong to one user, who need not be `uid`: root has given that directory away, because all directories above
 * belong to root (or `uid`), and no other user can change them. Symbolic links are refused. Undefined too for a path
 * that does not exist or may not be looked up: a connection to it fails with the same error.
 */
export function findDistrust(path: string, uid: number): string | undefined {
  const socket = resolve(path)
  const isOwn = (owner: number) => owner === 0 || owner === uid
  let above: Stats | undefined
  for (const name of namesOf(socket)) {
    const file = statOf(name)
    if (file === undefined) return undefined
    if (file.isSymbolicLink()) return `${name} is a symbolic link: name the real path`
    if (name !== socket && !file.isDirectory()) return `${name} is no directory`
    if (name === socket && !file.isSocket()) return `${name} is no socket`
    const mode = `mode ${(file.mode & 0o7777).toString(8)}`
    if (name !== socket && (file.mode & WRITABLE_BY_OTHERS) !== 0 && (file.mode & STICKY) === 0)
      return `other users than its owner can change the directory ${name} (${mode})`
    const mayBeAnyones = above !== undefined && (above.mode & WRITABLE_BY_OTHERS) !== 0
    const mayHaveOtherOwner = name === dirname(socket) || (name === socket && above?.uid === file.uid)
    if (!isOwn(file.uid) && (mayBeAnyones || !mayHaveOtherOwner))
      return `${name} belongs to the user with the id ${String(file.uid)}, who may have created it for this purpose`
    above = file
  }
  return undefined
}

/** `/`, `/run`, `/run/imds`, `/run/imds/operator.sock`. */
function namesOf(path: string): string[] {
  return path === '/' ? ['/'] : [...namesOf(dirname(path)), path]
}

function statOf(name: string): Stats | undefined {
  try {
    return lstatSync(name)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'ENOENT' || code === 'EACCES') return undefined
    throw error
  }
}
