/** Requests to the API in the process of a test, and the refusals that tests expect. */
import type { CLIENT_OF } from '../fixtures/region.ts'
import type { Method, TestApi } from './api.ts'

/** An account of `aRegion()`. */
export type TestAccount = keyof typeof CLIENT_OF

/** Sends requests below /1.0/ in the name of an account: ONE unless another is named. `create` throws a refusal. */
export interface TestClient<Body> {
  readonly call: (method: Method, path: string, body?: unknown, account?: TestAccount) => Promise<Answer<Body>>
  readonly list: (path: string, account?: TestAccount) => Promise<Body[]>
  readonly create: (path: string, body?: object, account?: TestAccount) => Promise<Body>
}
interface Answer<Body> {
  readonly status: number
  readonly body: Body
}
type Refused = Answer<{ readonly error_name: string; readonly errors: readonly string[] }>

/** Builds a client. */
export function aClient<Body>(api: Pick<TestApi, 'call'>): TestClient<Body> {
  const call = async (method: Method, path: string, body?: unknown, account?: TestAccount) => {
    const answer = await api.call(method, `/1.0/${path}`, body, account)
    return { status: answer.status, body: answer.body as Body }
  }
  return {
    call,
    list: async (path: string, account?: TestAccount) =>
      (await call('GET', path, undefined, account)).body as unknown as Body[],
    create: async (path: string, body: object = {}, account?: TestAccount) => {
      const answer = await call('POST', path, body, account)
      if (answer.status > 299) throw new Error(`POST ${path}: ${JSON.stringify(answer)}`)
      return answer.body
    },
  }
}

/** A refusal with all of its errors. */
export function refused(status: number, error_name: string, ...errors: string[]): Refused {
  return { status, body: { error_name, errors } }
}

/** A refusal of wrong parameters. */
export function invalid(...errors: string[]): Refused {
  return refused(422, 'unprocessable_entity', ...errors)
}

/** A refusal because of a state. */
export function conflict(error: string): Refused {
  return refused(409, 'resource_conflict', error)
}

/** A refusal of what does not exist, such as `the server srv-zzzzz`. */
export function missing(what: string): Refused {
  return refused(404, 'resource_not_found', `${what} does not exist`)
}
