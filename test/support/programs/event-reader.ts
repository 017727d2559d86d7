/** A client of the API that follows events. */

/** An event as clients see it. */
export interface ReadEvent {
  readonly id: string
  readonly type: string
  readonly resource: string
  readonly action: string
  readonly actor: string
  readonly fields: readonly string[]
  readonly request_id: string | null
  readonly idempotency_key: string | null
}

/** A stream that was opened. */
export interface OpenEvents {
  readonly response: Response
  /** The id that the stream has begun with, or that of the last event. */
  readonly last: string | undefined
  /** The next event; undefined: the stream has ended. */
  next(): Promise<ReadEvent | undefined>
  close(): void
}

/** Opens a stream. `after`: a cursor for Last-Event-ID, or none. Rejects if it is refused. */
export async function openEvents(baseUrl: string, token: string, after?: string, query = ''): Promise<OpenEvents> {
  const abort = new AbortController()
  const response = await fetch(`${baseUrl}/1.0/events${query}`, {
    signal: abort.signal,
    headers: {
      accept: 'text/event-stream',
      authorization: `Bearer ${token}`,
      ...(after !== undefined && { 'last-event-id': after }),
    },
  })
  if (response.status !== 200) throw new Error(`${response.status} ${await response.text()}`)
  let last: string | undefined
  const frames = readFrames(response)
  return {
    response,
    get last() {
      return last
    },
    next: async () => {
      for (;;) {
        const frame = await frames.next()
        if (frame.done === true) return undefined
        const fields = new Map(
          frame.value
            .split('\n')
            .map((line) => line.split(/: ?/, 1).concat(line.replace(/^\w*: ?/, '')) as [string, string]),
        )
        last = fields.get('id') ?? last
        const data = fields.get('data')
        if (data !== undefined) return JSON.parse(data) as ReadEvent
      }
    },
    close: () => abort.abort(),
  }
}

async function* readFrames({ body }: Response): AsyncGenerator<string> {
  let text = ''
  for await (const chunk of body!.pipeThrough(new TextDecoderStream())) {
    const frames = (text + chunk).split('\n\n')
    text = frames.pop()!
    yield* frames
  }
}
