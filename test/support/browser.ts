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
