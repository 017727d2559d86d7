/** The examples of docs/compute.md, executed in one shell against an imds-api whose hypervisors are in one zone. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { aRegion, CLIENT_OF, ONE } from '../support/fixtures/region.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { must } from '../support/programs/processes.ts'
import { executed } from '../tools/documents.ts'

/** A region whose hypervisors have the names of the documents. */
const REGION = aRegion({
  hypervisors: aRegion().hypervisors.map((one) => ({ ...one, name: one.name.replace('-', '') })),
})

t.test('every example of docs/compute.md works, in their order', async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'imds-compute-'))
  t.teardown(() => {
    rmSync(directory, { recursive: true, force: true })
  })
  const api = await startImdsApi(
    t,
    {
      IMDS_API_COMPUTE: 'reported',
      IMDS_API_COMPUTE_LISTEN: `unix:${directory}/compute.sock`,
      IMDS_API_COMPUTE_RETRY_SECONDS: '1',
    },
    REGION,
  )
  const headers = { authorization: `Bearer ${await api.token(CLIENT_OF[ONE])}`, 'content-type': 'application/json' }
  const call = async (method: string, path: string, body?: object) =>
    (
      await fetch(`${api.baseUrl}/1.0/${path}`, {
        method,
        headers,
        ...(body !== undefined && { body: JSON.stringify(body) }),
      })
    ).json() as Promise<{ id: string; status: string }>
  const { id } = await call('POST', 'servers', { image: 'img-deb12', zone: 'gb1-a', user_data: 'YQ==' })
  const shell = async (...lines: string[]) =>
    String(
      await must([
        'bash',
        '-c',
        ['set -eu', `cd ${directory}`, `server=${id}`, executed('docs/compute.md', 'function'), ...lines].join('\n'),
      ]),
    )
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line) as unknown)

  const carryOut = join(directory, 'carry-out')
  writeFileSync(
    carryOut,
    '#!/bin/sh\njq -e \'.action != "stop"\' > /dev/null || { echo "the guest is busy" >&2; exit 1; }\n',
    { mode: 0o755 },
  )
  t.match(await shell(executed('docs/compute.md', 'fetch')), [[{ action: 'create', server: { id } }]])
  t.match(await shell(executed('docs/compute.md', 'agent')), [{ action: 'create', outcome: 'succeeded', fault: null }])
  await until(async () => (await call('GET', `servers/${id}`)).status === 'active', 'the server to be active')
  await call('POST', `servers/${id}/stop`)
  t.match(await shell(executed('docs/compute.md', 'agent')), [
    { action: 'stop', outcome: 'failed', fault: 'the guest is busy\n' },
  ])
  t.equal((await call('GET', `servers/${id}`)).status, 'active')
  t.match(await shell(executed('docs/compute.md', 'migration')), [
    { migrating_to: 'hv2' },
    { hypervisor: 'hv2', migrating_to: null },
    { id, hypervisor: 'hv2' },
  ])
  t.match(await shell(executed('docs/compute.md', 'seal')), [{ id, sealed_at: /Z$/ }])
})
