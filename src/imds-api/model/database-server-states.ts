/**
 * The states of a database server (docs/api.md#database-servers). The region file sets them; this program has no
 * transitions of its own.
 */

/** In the order of the published document. Failing and failed ones are not available for use. */
export const DATABASE_SERVER_STATES = ['creating', 'active', 'deleting', 'deleted', 'failing', 'failed'] as const
/** One of DATABASE_SERVER_STATES. */
export type DatabaseServerStatus = (typeof DATABASE_SERVER_STATES)[number]
