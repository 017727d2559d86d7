/**
 * The servers of a database: one, or a primary and its standbys, of which any may become the next primary.
 *
 * A new connection goes to the server that was chosen last. The servers are compared again after a connection broke or
 * was refused, and every CHECK_INTERVAL_MS. Then the primary of the latest timeline is chosen, and the connections to
 * others are ended: PostgreSQL counts its timelines up at each promotion, so a primary of an earlier one is a former
 * primary, which came back or was never stopped. Nothing is asked of a single server without target_session_attrs.
 *
 * It cannot fence: a former primary is written to until the new one is seen, and after a restart of imds-api if the new
 * one cannot be reached then (docs/configuration.md).
 */
import type { SessionAttributes } from './server-url.ts'

/** One server, and its name in messages. `host`: a name, an address, or the directory of a unix socket. */
export interface Server {
  readonly name: string
  readonly address: { readonly host: string; readonly port: number }
}

/** What a server says of itself. `cluster`: the same for a primary and its standbys. `timeline`: 0 for a standby. */
export interface ServerState {
  readonly cluster: string
  readonly timeline: number
  readonly isStandby: boolean
  readonly isReadOnly: boolean
}

/** Reads the state of a server, on a connection for only that. Rejects if it cannot be reached in time. */
export type ReadState = (server: Server) => Promise<ServerState>

/** An open connection. */
export interface Connection {
  destroy(): void
}

/** A server that must not be used, or that none may be used. The code is PostgreSQL's for "cannot connect". */
export class UnfitServer extends Error {
  readonly code = '08001'
}

export const CHECK_INTERVAL_MS = 2_000

/** Chooses among the servers. `moved` is called when another one than before is chosen. */
export class Servers {
  readonly #servers: readonly Server[]
  readonly #session: SessionAttributes
  readonly #readState: ReadState
  readonly #moved: (message: string) => void
  readonly #connections = new Map<Connection, Server>()
  #chosen: Server | undefined
  /** False: the chosen server has to be compared with the others before the next connection. */
  #isSure = false
  #comparing: Promise<Server> | undefined
  /** The cluster of the first server that was reached; all must be of it. */
  #cluster: string | undefined
  /** The latest timeline that a primary had. */
  #timeline = 0

  constructor(
    servers: readonly Server[],
    session: SessionAttributes,
    readState: ReadState,
    moved: (message: string) => void,
  ) {
    this.#servers = servers
    this.#session = session
    this.#readState = readState
    this.#moved = moved
    if (servers.length === 1) [this.#chosen, this.#isSure] = [servers[0], true]
  }

  /** True: a server is asked for its state before it is used. */
  get areAsked(): boolean {
    return this.#servers.length > 1 || this.#session !== 'any'
  }

  /** Returns the server for a new connection. Rejects with UnfitServer, which has a reason for each server. */
  choose(): Promise<Server> {
    return this.#chosen !== undefined && this.#isSure ? Promise.resolve(this.#chosen) : this.#compare()
  }

  /** Adds a new connection. Throws if its server has become unfit meanwhile. */
  admit(connection: Connection, server: Server, state: ServerState | undefined): void {
    const fault = state === undefined ? undefined : this.#take(state)
    if (fault !== undefined || (this.#chosen !== undefined && this.#chosen !== server))
      throw new UnfitServer(`${server.name} ${fault ?? 'is no longer used'}`)
    this.#connections.set(connection, server)
  }

  isAdmitted(connection: Connection): boolean {
    return this.#connections.has(connection)
  }

  /** A connection has ended. */
  ended(connection: Connection): void {
    this.#connections.delete(connection)
  }

  /** A connection broke, was refused, or is read-only. */
  doubt(): void {
    this.#isSure = this.#servers.length === 1
  }

  /** Compares the servers every CHECK_INTERVAL_MS, if there are several. Returns the function that stops it. */
  watch(): () => void {
    if (this.#servers.length === 1) return () => undefined
    const timer = setInterval(() => {
      this.#compare().catch(() => {
        /* requests report it */
      })
    }, CHECK_INTERVAL_MS)
    return () => {
      clearInterval(timer)
    }
  }

  #compare(): Promise<Server> {
    return (this.#comparing ??= this.#compareNow().finally(() => {
      this.#comparing = undefined
    }))
  }

  async #compareNow(): Promise<Server> {
    const found = await Promise.all(
      this.#servers.map(async (server) => {
        try {
          return { server, state: await this.#readState(server) }
        } catch (error) {
          return { server, fault: reasonOf(error) }
        }
      }),
    )
    for (const { state } of found) if (state !== undefined) this.#take(state)
    const judged = found.map(({ server, state, fault }) => ({
      server,
      timeline: state?.timeline ?? 0,
      isReached: state !== undefined,
      fault: state === undefined ? fault : this.#take(state),
    }))
    for (const { server, isReached, fault } of judged)
      if (isReached && fault !== undefined) this.#end((other) => other === server)
    const former = this.#chosen
    const [best] = judged
      .filter(({ fault }) => fault === undefined)
      .sort((a, b) => b.timeline - a.timeline || Number(b.server === former) - Number(a.server === former))
    if (best === undefined) {
      this.#isSure = false
      throw new UnfitServer(
        `no server can be used: ${judged.map(({ server, fault }) => `${server.name} ${fault!}`).join('; ')}`,
      )
    }
    this.#chosen = best.server
    this.#isSure = true
    if (former !== undefined && former !== best.server) {
      this.#moved(`the database has moved from ${former.name} to ${best.server.name}`)
      this.#end((other) => other !== best.server)
    }
    return best.server
  }

  /** Remembers the cluster and the latest timeline. Returns why the server must not be used. */
  #take({ cluster, timeline, isStandby, isReadOnly }: ServerState): string | undefined {
    this.#cluster ??= cluster
    if (cluster !== this.#cluster) return 'is another database cluster, with another system identifier'
    this.#timeline = Math.max(this.#timeline, timeline)
    if (this.#session === 'any' && isStandby) return undefined
    if (isStandby) return 'is a standby'
    if (timeline < this.#timeline)
      return `is a former primary: its timeline is ${String(timeline)}, and ${String(this.#timeline)} was seen`
    return this.#session === 'read-write' && isReadOnly ? 'is read-only (default_transaction_read_only)' : undefined
  }

  /** Ends the connections to some servers. */
  #end(isEnding: (server: Server) => boolean): void {
    for (const [connection, server] of this.#connections)
      if (isEnding(server)) {
        this.#connections.delete(connection)
        connection.destroy()
      }
  }
}

function reasonOf(error: unknown): string {
  const { message, code } = error as NodeJS.ErrnoException
  return message === '' ? (code ?? 'cannot be reached') : message // an AggregateError of several addresses has no message
}
