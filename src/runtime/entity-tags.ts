/** Entity tags and conditional requests (RFC 9110, 8.8.3 and 13.1). Our tags have no commas. */
import { hash } from 'node:crypto'

/** How many characters of the digest a tag has: 132 bits. */
const LENGTH = 22

/** The strong tag of a body, with its quotes. */
export function entityTagOf(body: string): string {
  return `"${hash('sha256', body, 'base64url').slice(0, LENGTH)}"`
}

/** Whether `If-None-Match` names a tag: the weak comparison. */
export function namesWeakly(ifNoneMatch: string, tag: string): boolean {
  return ifNoneMatch.trim() === '*' || hasElement(ifNoneMatch, tag, true)
}

/** Whether `If-Match` names a tag: the strong comparison. */
export function namesStrongly(ifMatch: string, tag: string): boolean {
  return ifMatch.trim() === '*' || hasElement(ifMatch, tag, false)
}

/** Whether a list has a tag. It is searched and not split: a header may have thousands of commas. */
function hasElement(list: string, tag: string, isWeak: boolean): boolean {
  for (let at = list.indexOf(tag); at !== -1; at = list.indexOf(tag, at + 1)) {
    let start = at
    let end = at + tag.length
    if (isWeak && list.startsWith('W/', start - 2)) start -= 2
    while (isSpace(list[start - 1])) start -= 1
    while (isSpace(list[end])) end += 1
    if ([undefined, ','].includes(list[start - 1]) && [undefined, ','].includes(list[end])) return true
  }
  return false
}

function isSpace(character: string | undefined): boolean {
  return character === ' ' || character === '\t'
}
