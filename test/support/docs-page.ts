/** The page /docs of imds-api, as its reader uses it. */
import type { Locator, Page } from 'playwright-core'

export class DocsPage {
  readonly #page: Page
  readonly #form: Locator

  constructor(page: Page) {
    this.#page = page
    this.#form = page.locator('.auth-container')
  }

  /** Signs in with the id and secret of an API client. */
  async signIn(client: string, secret: string): Promise<void> {
    if (!(await this.#form.isVisible())) await this.#page.getByRole('button', { name: 'Authorize' }).click()
    await this.#form.getByLabel('client_id').fill(client)
    await this.#form.getByLabel('client_secret').fill(secret)
    await this.#form.getByRole('button', { name: 'Apply given OAuth2 credentials' }).click()
  }

  /** Waits for the error of a sign-in. */
  async signInError(): Promise<string | null> {
    return this.#form.locator('.errors').textContent()
  }

  /** Waits until the client is signed in, and closes the form. */
  async closeSignIn(): Promise<void> {
    await this.#form.getByText('Authorized', { exact: true }).waitFor()
    await this.#page.locator('.close-modal').click()
  }

  /** Sends the prefilled request of an operation. */
  async tryOut(subject: string, operationId: string): Promise<{ readonly status: number; readonly body: string }> {
    await this.#page.getByRole('link', { name: subject, exact: true }).click()
    const operation = this.#page.locator(`#operations-${subject}-${operationId}`)
    await operation.locator('.opblock-summary-control').click()
    await operation.getByRole('button', { name: 'Try it out' }).click()
    await operation.getByRole('button', { name: 'Execute' }).click()
    const response = operation.locator('.live-responses-table .response')
    return {
      status: Number.parseInt((await response.locator('.response-col_status').textContent())!),
      body: (await response.locator('.response-col_description pre').first().textContent())!,
    }
  }
}
