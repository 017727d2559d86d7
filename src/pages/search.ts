/** A table that is searched and shown in parts: the question in the query of a URL, the form, and links to other parts. */
import { parseWhole } from '../runtime/variables.ts'
import { markup, type Markup } from './markup.ts'

export const PAGE_ROWS = 50
/** A longer search finds nothing: no id and no address has so many characters. */
const MAX_CHARACTERS = 100
const MAX_PAGES = 1_000_000

/** What the reader of a page wants to see: rows that contain `search`, and of these the part with this number. */
export interface Question {
  readonly search: string
  readonly page: number
}

/** Reads a question from the query of a URL. What is not one is ignored. */
export function parseQuestion(query: unknown): Question {
  const { q, page } = query as { readonly q?: unknown; readonly page?: unknown }
  return {
    search: typeof q === 'string' ? q.trim().slice(0, MAX_CHARACTERS) : '',
    page: (typeof page === 'string' ? parseWhole(page, 1, MAX_PAGES) : undefined) ?? 1,
  }
}

/** A part of all rows. `page` is the last one if the question wants a later one. */
export interface PageOfRows<T> {
  readonly rows: readonly T[]
  readonly page: number
  readonly pages: number
  readonly total: number
}

export function partOf<T>(rows: readonly T[], question: Question): PageOfRows<T> {
  const pages = Math.max(1, Math.ceil(rows.length / PAGE_ROWS))
  const page = Math.min(question.page, pages)
  return { rows: rows.slice((page - 1) * PAGE_ROWS, page * PAGE_ROWS), page, pages, total: rows.length }
}

/** Formats the form of a search, and links to the parts before and after. `what` continues "search for". */
export function formatSearch({ search }: Question, { page, pages, total }: PageOfRows<unknown>, what: string): Markup {
  const link = (to: number, text: string) => markup`<a href="${hrefOf(search, to)}">${text}</a>`
  return markup`<form><input type="search" name="q" value="${search}" maxlength="${MAX_CHARACTERS}" aria-label="search for ${what}" placeholder="${what}"><button>Search</button></form>
<nav><span class="soft">${total} found${pages > 1 && `, page ${page} of ${pages}`}</span>${search !== '' && markup`<a href="?">all</a>`}${page > 1 && link(page - 1, 'previous')}${page < pages && link(page + 1, 'next')}</nav>
`
}

/** The relative URL of a search. */
export function hrefOf(search: string, page = 1): string {
  return `?${new URLSearchParams({ ...(search !== '' && { q: search }), ...(page > 1 && { page: String(page) }) }).toString()}`
}
