/** Events in the log of imds-api. */
import type { Meaning } from '../../conditions/condition.ts'

export const API_EVENTS: readonly Meaning[] = [
  {
    code: 'database-connection-lost',
    what: 'connections to PostgreSQL broke; they are opened again.',
    guests: 'nothing.',
    remedy: "nothing; if it repeats, see PostgreSQL's log",
  },
  {
    code: 'database-full',
    what: 'PostgreSQL has no disk space, memory or connections left: changes get 503.',
    guests: 'nothing; new servers wait.',
    remedy: '`reason` says which: make room, or raise `max_connections`',
  },
  {
    code: 'database-slow',
    what: 'a request took 8 s in PostgreSQL, and got 503.',
    guests: 'nothing.',
    remedy: 'if it repeats, look in `pg_stat_activity` for a transaction that keeps locks',
  },
  {
    code: 'database-conflict',
    what: 'PostgreSQL has refused a request because of others at the same time: it got 503.',
    guests: 'nothing.',
    remedy: 'nothing, unless it is frequent: then report it',
  },
  {
    code: 'rows-not-deleted',
    what: 'expired rows were not deleted. It is tried again in an hour.',
    guests: 'nothing.',
    remedy: 'repair the database if `reason` repeats',
  },
  {
    code: 'connections-full',
    what: 'all connections for clients are in use; those without an access token are closed.',
    guests: 'nothing.',
    remedy: 'find out who has them (`ss -Htn`), or raise `LimitNOFILE=` of imds-api.service',
  },
  {
    code: 'requests-shed',
    what: 'too many requests wait, and the heaviest callers get 503.',
    guests: 'nothing.',
    remedy: '`owner` should ask less often',
  },
  {
    code: 'store-replaced',
    what: 'the store was emptied, restarted or replaced: every server is published again.',
    guests: 'known ones keep their metadata.',
    remedy: '`imds-api reconcile --dry-run` says when it is done; find out why it happened',
  },
  {
    code: 'revision-behind',
    what: 'the store has a higher revision of a server than the database; imds-api publishes above it.',
    guests: 'they get what the database has.',
    remedy: '`imdsctl` changed the record, or one of both was restored: run imds-api reconcile',
  },
  {
    code: 'server-faulty',
    what: 'the rows of a server are faulty: it waits, and is tried again every minute.',
    guests: 'this one gets the last published state.',
    remedy: 'report `err`',
  },
  {
    code: 'action-failed',
    what: 'an agent could not carry out an action; `fault` has its reason.',
    guests: 'the server keeps its state.',
    remedy: 'see the log of the agent',
  },
  {
    code: 'actions-not-awaited',
    what: '`IMDS_API_COMPUTE` is `none` now, so actions that waited have succeeded without a hypervisor.',
    guests: 'states may differ from the virtual machines.',
    remedy: 'compare them before you set it back',
  },
  {
    code: 'invitations-not-read',
    what: 'invitations cannot be read from the database.',
    guests: 'nothing.',
    remedy: 'repair the database',
  },
]
