/** Debian's Chromium, with which tests look at pages as an operator does. */
import { chromium, type Browser, type Page } from 'playwright-core'

const CHROMIUM = '/usr/bin/chromium'

/** Starts a browser. It has no sandbox: that does not work for root, and the pages are ours. */
export function startBrowser(): Promise<Browser> {
  return chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox', '--disable-gpu'] })
}

/** What a page did besides showing itself: dialogs, messages of errors (such as those of its policy), requests. */
export interface Watched {
  readonly dialogs: string[]
  readonly errors: string[]
  readonly requests: string[]
}

/** Watches a page from now on. */
export function watch(page: Page): Watched {
  const watched: Watched = { dialogs: [], errors: [], requests: [] }
  page.on('dialog', (dialog) => {
    watched.dialogs.push(dialog.message())
    void dialog.dismiss()
  })
  page.on('console', (message) => {
    if (message.type() === 'error') watched.errors.push(message.text())
  })
  page.on('pageerror', (error) => watched.errors.push(error.message))
  page.on('request', (request) => watched.requests.push(request.url()))
  return watched
}

/** Whether a page fits the width of its window. */
export function fits(page: Page): Promise<boolean> {
  return page.evaluate('document.documentElement.scrollWidth <= window.innerWidth')
}

/** The colour behind a page. */
export function background(page: Page): Promise<string> {
  return page.evaluate('getComputedStyle(document.body).backgroundColor')
}

/** The short words in tables that are broken across two lines. */
export function brokenWords(page: Page): Promise<string[]> {
  return page.evaluate(`[...document.querySelectorAll('td')].flatMap((cell) => {
    const broken = []
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT)
    for (let text; (text = texts.nextNode()); )
      for (const { 0: word, index } of text.data.matchAll(/(?<![^\\s-])[^\\s-]{1,20}(?![^\\s-])/g)) {
        const range = document.createRange()
        range.setStart(text, index)
        range.setEnd(text, index + word.length)
        if (new Set([...range.getClientRects()].map(({ top }) => top)).size > 1) broken.push(word)
      }
    return broken
  })`)
}
