/** `imds-api bugreport`. It asks PostgreSQL for no rows of customers, and starts no embedded one. */
import { writeBugreport, type BugreportParts } from '../bugreport/bugreport.ts'
import type { Output } from '../runtime/output.ts'
import { IMDS_API_SERVICE } from '../runtime/service-environment.ts'
import { API_VARIABLES, parseApiConfig, type ApiConfig } from './config.ts'
import { embeddedUrl } from './database/embedded.ts'
import { appliedMigrations } from './database/migrate.ts'
import { openDatabase } from './database/open.ts'
import type { DatabaseSettings } from './database/settings.ts'
import { ask, findAll, stateRows } from './doctor.ts'

/** Writes a bug report to a file that does not exist yet, or to standard output (`-`). */
export async function bugreport(
  output: Output,
  given: Pick<BugreportParts, 'variables' | 'environmentFile'>,
  file: string | undefined,
): Promise<void> {
  const parsed = parseApiConfig(given.variables)
  const parts: BugreportParts = {
    ...given,
    program: 'imds-api',
    service: IMDS_API_SERVICE,
    units: [],
    table: API_VARIABLES,
    secretFiles: [],
    commands: [],
    sections: {
      doctor: async () => JSON.stringify(await findAll(parsed), undefined, 2),
      ...(parsed.ok && sectionsOf(parsed.value)),
    },
  }
  await writeBugreport(output, parts, file)
}

function sectionsOf(config: ApiConfig): BugreportParts['sections'] {
  return {
    status: async () => JSON.stringify(Object.fromEntries(await stateRows(config)), undefined, 2),
    readyz: async () => (await ask(config, '/readyz', [200, 503])).text(),
    metrics: async () => (await ask(config, '/metrics')).text(),
    migrations: () => readMigrations(config.database),
  }
}

async function readMigrations(settings: DatabaseSettings): Promise<string> {
  const server: DatabaseSettings =
    settings.kind === 'server'
      ? settings
      : { kind: 'server', url: embeddedUrl(settings.stateDirectory), passwordFile: undefined }
  const database = await openDatabase(server, true, () => {
    // the query fails
  })
  try {
    return (await appliedMigrations(database.db)).join('\n')
  } finally {
    await database.close()
  }
}
