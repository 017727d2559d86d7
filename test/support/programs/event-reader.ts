/** A client of the API that reads events. */

export interface ReadReference {
  readonly id: string
  readonly resource_type: string
  readonly url: string
}
/** An event as clients see it. */
export interface ReadEvent {
  readonly id: string
  readonly action: string
  readonly message: string
  readonly created_at: string
  readonly affects: readonly ReadReference[]
  readonly resource: ReadReference
  readonly fields: readonly string[]
  readonly request_id: string | null
  readonly idempotency_key: string | null
}

/** The events after a cursor, and the next cursor. `query`: further parameters. Rejects if the request fails. */
export async function readEvents(
  baseUrl: string,
  token: string,
  after: string,
  query = '',
  signal: AbortSignal | null = null,
): Promise<{ readonly events: readonly ReadEvent[]; readonly next: string }> {
  const url = `${baseUrl}/1.0/events?limit=1000&after=${after}${query}`
  const response = await fetch(url, { headers: { authorization: `Bearer ${token}` }, signal })
  if (response.status !== 200) throw new Error(`${response.status} ${await response.text()}`)
  const next = /after=([^&>]+)/.exec(response.headers.get('link') ?? '')![1]!
  return { events: (await response.json()) as readonly ReadEvent[], next }
}
