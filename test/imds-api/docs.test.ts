/**
 * The examples of docs/api.md, docs/accounts.md and docs/region-file.md, executed in one shell as a reader does, against
 * the imds-api that the first example starts.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { buildApiMetrics } from '../../src/imds-api/metrics.ts'
import type { Database } from '../../src/imds-api/database/open.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { freePort } from '../support/redis/redis.ts'
import { executed, ROOT } from '../tools/documents.ts'

/** The fields of a response that identify it. */
type Json = Readonly<Record<'resource_type' | 'name' | 'status' | 'error_name' | 'token_type', string | undefined>> & {
  readonly errors?: readonly string[]
}

/**
 * The examples in their order, and what each prints: resources as `resource_type status`, errors as their name; n of a
 * list.
 */
const EXAMPLES = [
  [executed('docs/api.md', 'five'), /^\+ region gb1\n[^]*\n(?:creating|active)\n$/],
  [executed('docs/api.md', 'function'), []],
  [executed('docs/api.md', 'errors'), ['unprocessable_entity 2', 'unprocessable_entity 1', 'resource_not_found 1']],
  [
    executed('docs/api.md', 'lists'),
    /^\[\]\n\[\{"id":"zon-\w+","handle":"gb1-a"\}\]\n\[\{"id":"zon-\w+","handle":"gb1-b"\}\]\n$/,
  ],
  [executed('docs/api.md', 'conditions'), /^304\n200\n412\n200\n$/],
  [executed('docs/api.md', 'request-id'), /^job-42\n$/],
  [
    executed('docs/api.md', 'rate-limit'),
    /^RateLimit-Policy: "failures";q=10;w=600\r\nRateLimit: "failures";r=9\r\n$/i,
  ],
  [
    executed('docs/api.md', 'idempotency'),
    /^HTTP\/1.1 201 [^]*"name":"once"[^]*\nidempotent-replayed: true\r\n\{"error_name":"unprocessable_entity"[^\n]*Idempotency-Key[^\n]*\n$/i,
  ],
  [
    executed('docs/api.md', 'waiting'),
    /^active\ndeleted\n\{"error_name":"resource_conflict","errors":\["srv-\w+ is deleted: it cannot become active"\][^\n]*\n$/,
  ],
  [
    executed('docs/api.md', 'events'),
    /^watched\n\[\{"id":"(\w+-\d+)","type":"server_group",[^\n]*"action":"create",[^\n]*\}\]\nid: \S+\n\nid: \1\ndata: \{"id":"\1",[^\n]*"create"[^\n]*\n\n(?:id: [^\n]*\ndata: [^\n]*"update"[^\n]*\n\n)?id: [^\n]*\ndata: [^\n]*"delete"[^\n]*\n\n/,
  ],
  [executed('docs/api.md', 'servers'), ['server db', 'server web-1', 'server web-1', 'server web-1', '2 server']],
  [executed('docs/api.md', 'metadata-options'), ['server web-1', 'server web-1']],
  [executed('docs/api.md', 'wait-for-boot'), ['not_implemented 1']], // the store here is a directory
  [executed('docs/api.md', 'actions'), ['server web-1', 'server web-1', 'server web-1']],
  [
    executed('docs/api.md', 'cloud-ips'),
    ['interface', 'cloud_ip mapped', 'cloud_ip mapped', 'cloud_ip unmapped', 'cloud_ip unmapped'],
  ],
  [
    executed('docs/api.md', 'server-groups'),
    [
      'server_group front',
      'server_group back',
      'server_group back',
      'server_group idle',
      'server_group idle',
      '2 server_group',
    ],
  ],
  [executed('docs/api.md', 'config-maps'), ['config_map front', '1 config_map', 'config_map front']],
  [
    executed('docs/api.md', 'database-servers'),
    ['1 database_server', 'database_server orders', 'database_server orders', '1 database_type', 'database_type Small'],
  ],
  [executed('docs/api.md', 'images'), ['2 image', 'image Debian 12', 'image golden', 'image golden']],
  [executed('docs/api.md', 'catalog'), ['2 server_type', 'server_type Medium SSD', '2 zone', 'zone']],
  [executed('docs/accounts.md', 'token'), ['Bearer']],
  [
    executed('docs/accounts.md', 'sign-in'),
    /^~ user usr-k3c8e: password_hash, totp_secret\n\+ application app-8xk2p\n\{"error":"invalid_client".*\n\{"id":"usr-k3c8e".*\n\{"id":"acc-h3nbk".*\n$/,
  ],
  [
    executed('docs/accounts.md', 'accounts'),
    [
      'account Analytical Engines',
      '1 account',
      'account Analytical Engines',
      'user Ada Lovelace',
      '1 user',
      'user Ada Lovelace',
    ],
  ],
  [executed('docs/accounts.md', 'account-changes'), ['account Analytical Engines', 'unprocessable_entity 2']],
  [executed('docs/accounts.md', 'users'), ['user Ada Lovelace', 'unprocessable_entity 1']],
  [executed('docs/accounts.md', 'api-clients'), ['Bearer', 'api_client backup', '2 api_client', 'api_client backup']],
  [executed('docs/accounts.md', 'client-limits'), ['api_client metrics', 'api_client metrics', 'api_client metrics']],
  [
    executed('docs/accounts.md', 'applications'),
    ['Mobile', 'application Tablet', 'application Tablet', '1 application'],
  ],
  [
    executed('docs/accounts.md', 'collaborations'),
    ['collaboration pending', '1 collaboration', 'collaboration cancelled'],
  ],
  [executed('docs/accounts.md', 'user-side'), ['user Ada Lovelace', '0 ', 'resource_not_found 1']],
  [
    executed('docs/region-file.md', 'commands'),
    /^no difference\nthe tables are those of this version\nthe store: \S+ has 2 records\nthe tables are those of this version\npublished 2 servers\n2 servers: 0 differ in the store, 0 wait to be published\n10000 ids of each kind, .* are skipped\nUsage: imds-api[^]*api_clients\/ID\/reset_secret/,
  ],
] as const

/** What the table above says of a line of JSON. */
function summaryOf(line: string): string {
  const value = JSON.parse(line) as Json | readonly Json[]
  if (Array.isArray(value)) return `${String(value.length)} ${(value as Json[])[0]?.resource_type ?? ''}`
  const { resource_type: type, name, status, error_name: error, errors, token_type: token } = value as Json
  if (error !== undefined) return `${error} ${String(errors?.length)}`
  return [type ?? token, type === 'cloud_ip' || type === 'collaboration' ? status : name]
    .filter((part) => part !== undefined)
    .join(' ')
}

t.test('every example of api.md, accounts.md and region-file.md works, in their order', async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'imds-docs-'))
  chmodSync(directory, 0o711) // as root, PostgreSQL runs as another user
  cpSync(`${ROOT}deploy/region.example.yaml`, join(directory, 'region.yaml'))
  writeFileSync(join(directory, 'provisioning.secret'), 'it-is-a-secret-of-a-client\n')
  writeFileSync(join(directory, 'imds-api'), `#!/bin/sh\nexec ${process.execPath} ${IMDS_API} "$@"\n`, { mode: 0o755 })
  const [port, operatorPort] = [await freePort(), await freePort()]
  const environment = programEnvironment()
  const env = {
    ...environment,
    PATH: `${directory}:${environment['PATH']!}`,
    IMDS_STORE: `file:${directory}`,
    IMDS_API_STATE_DIR: join(directory, 'state'),
    IMDS_API_LISTEN: `127.0.0.1:${String(port)}`,
    IMDS_API_OPERATOR_LISTEN: `127.0.0.1:${String(operatorPort)}`,
  }
  const script = [
    'set -eu',
    "trap 'kill %1; wait %1' EXIT", // also where an example fails
    ...EXAMPLES.flatMap(([example]) => [
      example.replaceAll('127.0.0.1:8170', `127.0.0.1:${String(port)}`),
      'printf "\\f"',
    ]),
    `curl -s 127.0.0.1:${String(operatorPort)}/metrics`,
  ].join('\n')
  const shell = spawn('bash', ['-c', script], { cwd: directory, env, stdio: ['ignore', 'pipe', 'inherit'] })
  t.teardown(() => {
    rmSync(directory, { recursive: true, force: true })
  })
  const [chunks] = await Promise.all([shell.stdout.toArray(), once(shell, 'close')])
  const printed = Buffer.concat(chunks as Buffer[])
    .toString()
    .split('\f')
  t.equal(shell.exitCode, 0)
  for (const [i, [example, expected]] of EXAMPLES.entries()) {
    if (expected instanceof RegExp) t.match(printed[i], expected, example)
    else
      t.same(
        printed[i]!.split('\n')
          .filter((line) => line !== '')
          .map(summaryOf),
        expected,
        example,
      )
  }

  // The first scrape has every metric: only certificates are not here.
  const metrics = printed.at(-1)!
  const declared = buildApiMetrics({} as Database)
    .registry.getMetricsAsArray()
    .map(({ name }) => name)
    .filter((name) => name.startsWith('imds_'))
  t.ok(declared.length > 8)
  for (const name of declared)
    if (name !== 'imds_api_certificate_end_seconds') t.match(metrics, new RegExp(`^${name}[ {]`, 'm'), name)
})
