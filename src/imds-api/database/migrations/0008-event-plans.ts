/** Brought the functions of events to those that look only by an index, which 0014-event-triggers.ts replaces. */

export async function up(): Promise<void> {
  // migrate.ts replaced them with each migration
}
