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
  return ifNoneMatch.trim() === '*' || tagsOf(ifNoneMatch).some((one) => one.replace(/^W\//, '') === tag)
}

/** Whether `If-Match` names a tag: the strong comparison. */
export function namesStrongly(ifMatch: string, tag: string): boolean {
  return ifMatch.trim() === '*' || tagsOf(ifMatch).includes(tag)
}

function tagsOf(header: string): string[] {
  return header.split(',').map((one) => one.trim())
}
