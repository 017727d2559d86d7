/** A connection of node-postgres to the server that `Servers` chooses. */
import type { EventEmitter } from 'node:events'
import type { Socket } from 'node:net'
import pg from 'pg'
import { UnfitServer, type Connection, type Server, type Servers, type ServerState } from './servers.ts'

/** What TypeScript's types of pg leave out. `connect` goes to the `host` and `port` that it finds there. */
interface Inner {
  readonly connection: EventEmitter & { readonly stream: Pick<Socket, 'destroy'> }
}

/** How long a server may take to answer what it is. */
const STATE_TIMEOUT_MS = 2_000
/** PostgreSQL's code for a change on a standby, or with default_transaction_read_only. */
const READ_ONLY = '25006'
/** The first eight digits of a WAL file's name are the timeline. A standby cannot be asked for it. */
const STATE = `select system_identifier::text as cluster, pg_is_in_recovery() as standby,
  current_setting('transaction_read_only') = 'on' as read_only,
  case when pg_is_in_recovery() then null else left(pg_walfile_name(pg_current_wal_lsn()), 8) end as timeline
  from pg_control_system()`
interface StateRow {
  readonly cluster: string
  readonly standby: boolean
  readonly read_only: boolean
  readonly timeline: string | null
}

/** Reads the state of a server on a connection of its own. */
export async function readServerState(connection: pg.ClientConfig, { address }: Server): Promise<ServerState> {
  const client = new pg.Client({ ...connection, ...address, connectionTimeoutMillis: STATE_TIMEOUT_MS })
  client.on('error', () => {
    /* connect and the query reject too */
  })
  try {
    await client.connect()
    return await readState(client)
  } finally {
    void client.end().catch(() => {
      /* closed already */
    })
  }
}

/**
 * The class of our connections, for a pool or alone. `connect` rejects if the server must not be used. After a refused
 * change a connection is no longer admitted, and its pool has to close it.
 */
export function clientOf(servers: Servers): new (config: pg.ClientConfig) => pg.Client {
  return class extends pg.Client implements Connection {
    constructor(config: pg.ClientConfig) {
      super(config)
      // An error without a listener ends the process. The next query reports it.
      this.on('error', () => {
        servers.doubt()
      })
      this.on('end', () => {
        servers.ended(this)
      })
      innerOf(this).connection.on('errorMessage', ({ code }: { readonly code?: string }) => {
        if (code !== READ_ONLY) return
        servers.ended(this)
        servers.doubt()
      })
    }

    override connect(): Promise<pg.Client>
    override connect(callback: (error: Error) => void): void
    override connect(callback?: (error: Error) => void): Promise<pg.Client> | undefined {
      const connecting = this.#connectToChosen()
      if (callback === undefined) return connecting
      connecting.then(() => {
        callback(undefined as unknown as Error) // none
      }, callback)
      return undefined
    }

    destroy(): void {
      innerOf(this).connection.stream.destroy()
    }

    async #connectToChosen(): Promise<pg.Client> {
      const server = await servers.choose()
      Object.assign(innerOf(this), server.address)
      try {
        await super.connect()
        servers.admit(this, server, servers.areAsked ? await readState(this) : undefined)
      } catch (error) {
        servers.doubt()
        void this.end().catch(() => {
          /* closed already */
        })
        throw error
      }
      return this
    }
  }
}

function innerOf(client: pg.Client): Inner {
  return client as unknown as Inner
}

async function readState(client: pg.Client): Promise<ServerState> {
  const query = { text: STATE, query_timeout: STATE_TIMEOUT_MS } // which the types of pg leave out
  const { rows } = await client.query<StateRow>(query).catch((error: unknown) => {
    throw new UnfitServer(`cannot be asked for its state: ${(error as Error).message}`, { cause: error })
  })
  const { cluster, standby, read_only, timeline } = rows[0]!
  return { cluster, timeline: parseInt(timeline ?? '0', 16), isStandby: standby, isReadOnly: read_only }
}
