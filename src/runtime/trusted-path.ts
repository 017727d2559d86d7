/**
 * Checks that no other user decides what a path leads to, for a program that trusts what it finds there or creates files
 * there.
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
    const fault = name === socket ? faultOfSocket(name, file) : faultOfDirectory(name, file)
    if (fault !== undefined) return fault
    const mayBeAnyones = above !== undefined && (above.mode & WRITABLE_BY_OTHERS) !== 0
    const mayHaveOtherOwner = name === dirname(socket) || (name === socket && above?.uid === file.uid)
    if (!isOwn(file.uid) && (mayBeAnyones || !mayHaveOtherOwner))
      return `${name} belongs to the user with the id ${file.uid}, who may have created it for this purpose`
    above = file
  }
  return undefined
}

/**
 * Why root must not create files in the directory at `path` or follow its links, or undefined: another user could
 * replace them, it or a directory above by a link to anything else. Undefined too for a path that does not exist.
 */
export function findDistrustOfDirectory(path: string): string | undefined {
  for (const name of namesOf(resolve(path))) {
    const file = statOf(name)
    if (file === undefined) return undefined
    const fault = faultOfDirectory(name, file)
    if (fault !== undefined) return fault
    if (file.uid !== 0) return `${name} belongs to the user with the id ${file.uid}, who can replace what is there`
  }
  return undefined
}

function faultOfSocket(name: string, file: Stats): string | undefined {
  return file.isSymbolicLink() ? linkFault(name) : file.isSocket() ? undefined : `${name} is no socket`
}

function faultOfDirectory(name: string, file: Stats): string | undefined {
  if (file.isSymbolicLink()) return linkFault(name)
  if (!file.isDirectory()) return `${name} is no directory`
  return (file.mode & WRITABLE_BY_OTHERS) !== 0 && (file.mode & STICKY) === 0
    ? `other users than its owner can change the directory ${name} (mode ${(file.mode & 0o7777).toString(8)})`
    : undefined
}

function linkFault(name: string): string {
  return `${name} is a symbolic link: name the real path`
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
