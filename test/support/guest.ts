/**
 * A guest server in this process: a view, the server in front of it, and requests that are injected.
 */
import type { FastifyInstance } from 'fastify'
import { pino } from 'pino'
import type { Provider } from '../../src/metadata/categories.ts'
import type { Instance } from '../../src/metadata/instance.ts'
import { parse } from '../../src/metadata/record.ts'
import { RefusalLog } from '../../src/guest/refusal-log.ts'
import { RequestMeter } from '../../src/guest/meter.ts'
import type { Rules } from '../../src/guest/authorize.ts'
import { buildGuestServer } from '../../src/guest/server.ts'
import { Shares, UNKNOWN_PEERS, type Allowance } from '../../src/guest/share.ts'
import { Tokens } from '../../src/guest/token.ts'
import { sha256 } from '../../src/metadata/user-data.ts'
import { View } from '../../src/view/view.ts'

/** An answer with its body as it is on the wire. */
export interface Injected { readonly status: number, readonly headers: Readonly<Record<string, unknown>>, readonly body: Buffer, readonly text: string }

/** A request: a path alone is a GET. */
export interface Injection { readonly method?: string, readonly url: string, readonly headers?: Record<string, string>, readonly payload?: string, readonly from?: string }

/** A guest server on one network, its view, and a clock that the test moves. */
export interface TestGuest {
  /** It does not listen. */
  readonly server: FastifyInstance
  readonly view: View
  readonly meter: RequestMeter
  readonly clock: { ms: number }
  readonly log: Record<string, unknown>[]
  /** Publishes into the view; the user-data is described in the record for the caller. */
  put(record: Record<string, unknown>, userData?: Buffer | null): Instance
  ask(injection: string | Injection): Promise<Injected>
}

/** A valid record, parsed; throws with the faults otherwise. */
export function parsed(record: Record<string, unknown>): Instance {
  const result = parse(record)
  if (!result.ok) throw new Error(JSON.stringify(result.faults))
  return result.instance
}

/** Tables ask more than a guest may. */
const ENDLESS: Allowance = { burst: Infinity, perSecond: 1, connections: Infinity }

interface GuestSettings { readonly network?: string, readonly provider?: Provider, readonly level?: string, readonly forwarded?: Rules['forwarded'], readonly share?: Allowance, readonly limitsHops?: boolean }

/** Builds a guest server for `network`. Requests come from 10.0.0.2 unless they say otherwise. */
export function aGuestServer({ network = 'default', provider = {}, level = 'info', forwarded = 'refuse', share = ENDLESS, limitsHops = true }: GuestSettings = {}): TestGuest {
  const clock = { ms: 0 }
  const log: Record<string, unknown>[] = []
  const logger = pino({ level }, { write: (line: string) => { log.push(JSON.parse(line) as Record<string, unknown>) } })
  const view = new View(provider, () => clock.ms)
  const meter = new RequestMeter()
  const directory = { find: (on: string, address: string) => view.find(on, address), ask: () => null }
  const rules = { tokens: new Tokens([Buffer.alloc(32, 7)], () => clock.ms / 1000), forwarded, limitHops: () => limitsHops }
  const server = buildGuestServer({ network, maxConnections: Infinity, directory, shares: new Shares(share, UNKNOWN_PEERS), rules, meter, refusalLog: new RefusalLog(logger, () => clock.ms), log: logger })
  return {
    server, view, meter, clock, log,
    put: (record, userData = null) => {
      const described = userData === null ? record : { ...record, userData: { size: userData.length, sha256: sha256(userData) } }
      const instance = parsed(described)
      view.replace({ instance, userData, digest: sha256(Buffer.from(JSON.stringify([instance, userData]))) })
      return instance
    },
    ask: async (injection) => {
      const { method = 'GET', url, headers = {}, payload, from = '10.0.0.2' } = typeof injection === 'string' ? { url: injection } : injection
      const response = await server.inject({
        method: method as 'GET', url, headers, remoteAddress: from, ...payload !== undefined && { payload },
      })
      return { status: response.statusCode, headers: response.headers, body: response.rawPayload, text: response.rawPayload.toString('latin1') }
    },
  }
}
