/**
 * The frame of a page for operators: one document that loads nothing else and has no script. It refreshes itself, is
 * dark or light as its reader prefers, and fits a phone.
 */
import { createHash } from 'node:crypto'
import type { State } from '../runtime/check.ts'
import { markup, type Markup } from './markup.ts'
import { STYLE } from './style.ts'

const REFRESH_SECONDS = 30

const STYLE_HASH = createHash('sha256').update(STYLE.toString()).digest('base64')

/** The headers of every page: a browser applies no other style, runs no script, and shows it in no other site's frame. */
export const PAGE_HEADERS: Readonly<Record<string, string>> = {
  'content-type': 'text/html; charset=utf-8',
  'content-security-policy': `default-src 'none'; style-src 'sha256-${STYLE_HASH}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'`,
  'cache-control': 'no-store',
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
}

/** A state as a word in its colour. */
export function formatState(state: State): Markup {
  return markup`<b class="${state}">${state}</b>`
}

/** A page. `about`: what is below its title, such as version and time. */
export interface Document {
  readonly title: string
  readonly state: State
  readonly about: string
  readonly sections: readonly (readonly [heading: string, content: Markup])[]
}

/** Formats a whole document. The state comes first, so that it can be seen among the tabs of a browser. */
export function formatDocument({ title, state, about, sections }: Document): string {
  return markup`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="${REFRESH_SECONDS}">
<title>${state}: ${title}</title>
<style>${STYLE}</style>
</head>
<body>
<header><h1>${title} ${formatState(state)}</h1><p>${about}</p></header>
<main>
${sections.map(
  ([heading, content]) => markup`<section><h2>${heading}</h2>
${content}</section>
`,
)}</main>
</body>
</html>
`.toString()
}
