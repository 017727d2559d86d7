/**
 * The guide below /docs/guide/: the documents of this project as HTML, for readers who have nothing but a running
 * imds-api. Their links are relative, so they work here too.
 */
import { createHash } from 'node:crypto'
import { readdirSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { extname } from 'node:path'
import { Marked } from 'marked'
import Type from 'typebox'
import type { ApiServer } from './server.ts'

/** `npm run build` copies this directory beside the program. */
const DOCUMENTS = new URL('../../../docs/', import.meta.url)
const IMAGES: Readonly<Record<string, string>> = { '.png': 'image/png', '.svg': 'image/svg+xml' }

const STYLE = `
:root{color-scheme:light dark}
body{margin:0 auto;padding:1rem;max-width:60rem;font:16px/1.5 system-ui,sans-serif}
pre,code{font-family:ui-monospace,monospace;font-size:.87em}
pre{padding:.7rem;overflow-x:auto;background:#8881}
table{display:block;overflow-x:auto;border-collapse:collapse}
th,td{padding:.3rem .6rem;text-align:left;vertical-align:top;border:1px solid #8886}
img{max-width:100%}
`
/** The policy lets a browser apply this style, show images of the guide, and nothing else. */
const HEADERS = {
  'content-type': 'text/html; charset=utf-8',
  'content-security-policy':
    `default-src 'none'; style-src 'sha256-${createHash('sha256').update(STYLE).digest('base64')}'; ` +
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}

/** The URL of imds-api in the examples of the documents. */
const EXAMPLE = 'http://127.0.0.1:8170'

/** Adds the route. A page is formatted at its first request. Its examples have `baseUrl`, that of this region. */
export function addGuide(server: ApiServer, baseUrl: string): void {
  const names = readdirSync(DOCUMENTS, { recursive: true, encoding: 'utf8' }).filter(
    (name) => name.endsWith('.md') || extname(name) in IMAGES,
  )
  const pages = new Map<string, string>()
  server.get(
    '/docs/guide/*',
    { schema: { hide: true, params: Type.Object({ '*': Type.String({ enum: names }) }) } },
    async ({ params: { '*': name } }, reply) => {
      const type = IMAGES[extname(name)]
      if (type !== undefined) return reply.type(type).send(await readFile(new URL(name, DOCUMENTS)))
      const page =
        pages.get(name) ??
        formatGuide((await readFile(new URL(name, DOCUMENTS), 'utf8')).replaceAll(EXAMPLE, () => baseUrl))
      pages.set(name, page)
      return reply.headers(HEADERS).send(page)
    },
  )
}

/** Formats a document, whose first line is its title. */
function formatGuide(markdown: string): string {
  const { parse } = new Marked({
    renderer: {
      heading({ tokens, depth, text }) {
        const level = `h${depth}`
        return `<${level} id="${anchorOf(text)}">${this.parser.parseInline(tokens)}</${level}>\n`
      },
    },
  })
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${/^# (.+)/.exec(markdown)![1]!} - imds</title>
<link rel="icon" href="/docs/static/favicon-32x32.png">
<style>${STYLE}</style>
</head>
<body>
${parse(markdown, { async: false })}</body>
</html>
`
}

/** The anchor of a heading, as GitHub makes it. */
function anchorOf(heading: string): string {
  return heading
    .toLowerCase()
    .replace(/[^\w\- ]/g, '')
    .replaceAll(' ', '-')
}
