/** The bodies of errors of imds-api. */

interface ErrorBody {
  readonly errors: readonly string[]
  readonly request_id?: string
  readonly details?: readonly { readonly message: string }[]
}

/**
 * A body without `details`, which are the same as `errors`, and without `request_id`. Throws if it has not both. Any
 * other body stays as it is.
 */
export function withoutDetails(body: unknown): unknown {
  if (typeof body !== 'object' || body === null || !('errors' in body)) return body
  const { details, request_id: id = '', ...rest } = body as ErrorBody
  const isSame =
    details?.map(({ message }) => message).join('\n') === rest.errors.join('\n') &&
    details.every((detail) => Object.keys(detail).join() === 'field,code,message')
  if (!isSame) throw new Error(`details are not the same as errors: ${JSON.stringify(body)}`)
  if (id === '') throw new Error(`there is no request_id: ${JSON.stringify(body)}`)
  return rest
}
