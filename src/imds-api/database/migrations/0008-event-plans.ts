/** Brings the functions of events to those that look only by an index (event-triggers.ts). */

export async function up(): Promise<void> {
  // migrate.ts replaces them with each migration
}
