/** Entity tags and conditional requests (RFC 9110, 8.8.3 and 13.1). Our tags have no commas. */

/** Whether `If-None-Match` names a tag: the weak comparison. */
export function namesWeakly(ifNoneMatch: string, tag: string): boolean {
  return names(ifNoneMatch, [tag, `W/${tag}`], tag)
}

/** Whether `If-Match` names a tag: the strong comparison. */
export function namesStrongly(ifMatch: string, tag: string): boolean {
  return names(ifMatch, [tag], tag)
}

/** Looks only at elements that contain the tag: splitting a list of 15,000 commas would cost more than a request. */
function names(header: string, forms: readonly string[], tag: string): boolean {
  if (header.trim() === '*') return true
  let at = header.indexOf(tag)
  while (at !== -1) {
    const comma = header.indexOf(',', at)
    const end = comma === -1 ? header.length : comma
    if (forms.includes(header.slice(header.lastIndexOf(',', at) + 1, end).trim())) return true
    at = header.indexOf(tag, end)
  }
  return false
}
