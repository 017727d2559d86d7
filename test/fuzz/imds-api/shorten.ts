/** Makes a request that fails shorter, while it still fails. */
import type { ApiRequest } from './send.ts'

/** The request without what it does not need to fail: its body, its query, headers, members of its JSON. */
export async function shorten(
  request: ApiRequest,
  fails: (shorter: ApiRequest) => Promise<boolean>,
): Promise<ApiRequest> {
  for (const shorter of shorterThan(request)) if (await fails(shorter)) return shorten(shorter, fails)
  return request
}

function shorterThan(request: ApiRequest): ApiRequest[] {
  const { body, ...withoutBody } = request
  const [path, query] = request.target.split('?', 2)
  return [
    ...(body === undefined ? [] : [withoutBody]),
    ...(query === undefined ? [] : [{ ...request, target: path! }]),
    ...Object.keys(request.headers).map((name) => ({ ...request, headers: without(request.headers, name) })),
    ...shorterJson(body).map((shorter) => ({ ...request, body: shorter })),
  ]
}

/** The JSON of a body without one of its members, for each of them. */
function shorterJson(body: string | undefined): string[] {
  try {
    const value = JSON.parse(body ?? '') as object
    return Array.isArray(value) ? [] : Object.keys(value).map((name) => JSON.stringify(without(value, name)))
  } catch {
    return []
  }
}

function without<T extends object>(value: T, removed: string): T {
  return Object.fromEntries(Object.entries(value).filter(([name]) => name !== removed)) as T
}
