/** test/imdsd/region-in-an-hour.test.ts reads files as the user of the service: a worker of vitest cannot. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { serviceFileFaults } from '../../../../src/imds-api/service/service-files.ts'
import { keyLines } from '../../../support/fixtures/record-keys.ts'
import { directoryOfFile } from '../../../support/fixtures/temporary-directory.ts'

const NOW = Date.parse('2026-11-29T12:00:00Z')
const directory = directoryOfFile()

function write(name: string, text: string): string {
  const path = join(directory, name)
  writeFileSync(path, text)
  return path
}

const find = (variables: Record<string, string>) =>
  serviceFileFaults({ variables, credentials: new Set() }, undefined, NOW).map(
    ({ variable, message }) => `${variable} ${message.replaceAll(`${directory}/`, '')}`,
  )

test('each file of the variables is read, and has to be what the name of its variable says', () => {
  const bad = write('bad', '\n')
  expect(
    find({
      IMDS_API_TLS_CERT_FILE: bad,
      IMDS_API_TLS_KEY_FILE: bad,
      IMDS_API_COMPUTE_TLS_CLIENT_CA_FILE: join(directory, 'none'),
      IMDS_API_DATABASE_PASSWORD_FILE: bad,
      IMDS_RECORD_KEYS_FILE: write('keys', keyLines('k1')),
    }).sort(),
  ).toEqual([
    'IMDS_API_COMPUTE_TLS_CLIENT_CA_FILE none cannot be read: ENOENT',
    'IMDS_API_DATABASE_PASSWORD_FILE bad has no password in its first line',
    'IMDS_API_TLS_CERT_FILE bad has no PEM certificate',
    'IMDS_API_TLS_KEY_FILE bad has no PEM private key, or one that needs a passphrase',
  ])
})
