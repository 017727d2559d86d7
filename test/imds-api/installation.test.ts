/** imds-api while its installation is replaced, as by an upgrade. */
import { renameSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { testDirectory } from '../support/test-directory.ts'
import { buildInto } from '../support/programs/imds.ts'

t.test('it answers while its installation is replaced, and reads documents when the files are back', async (t) => {
  const dist = join(testDirectory(t, { dist: {}, 'package.json': '{"type": "module"}' }), 'dist')
  buildInto(dist)
  const wrapper = ['sh', '-c', `exec "$0" ${dist}/api.js`]
  const replaced = await startImdsApi(t, { IMDS_API_DATABASE: 'embedded' }, undefined, 'inherit', wrapper)
  const headers = { authorization: `Bearer ${await replaced.token(CLIENT_OF[ONE])}` }
  const status = async (url: string, init = {}) => (await fetch(url, init)).status
  const vatNumber = () =>
    status(`${replaced.baseUrl}/1.0/accounts/${ONE}`, {
      method: 'PUT',
      headers: { ...headers, 'content-type': 'application/json' },
      body: JSON.stringify({ vat_registration_number: 'DE136695976' }),
    })
  renameSync(dist, `${dist}.old`)
  for (const url of [
    `${replaced.operatorUrl}/`,
    `${replaced.operatorUrl}/metrics`,
    `${replaced.operatorUrl}/readyz`,
    `${replaced.baseUrl}/docs/`,
    `${replaced.baseUrl}/docs/json`,
    `${replaced.baseUrl}/1.0/openapi.json`,
  ])
    t.equal(await status(url), 200, url)
  t.equal(await status(`${replaced.baseUrl}/1.0/servers`, { headers }), 200)
  await vatNumber()
  renameSync(`${dist}.old`, dist)
  t.equal(await vatNumber(), 200)
  t.equal(await replaced.stop(), 0)
})
