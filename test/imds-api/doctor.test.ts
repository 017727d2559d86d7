/** `imds-api doctor`: a service that is well, one that has stopped, and a configuration that is not valid. */
import t from 'tap'
import { formatHostPort } from '../../src/runtime/host-port.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { IMDS_API, programEnvironment } from '../support/programs/imds.ts'
import { run } from '../support/programs/processes.ts'
import { startRedis } from '../support/redis/redis.ts'

const redis = await startRedis(t)
const api = await startImdsApi(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1' })
const { hostname: host, port } = new URL(api.operatorUrl)
const BESIDE = {
  ...programEnvironment(),
  ...api.env,
  IMDS_API_OPERATOR_LISTEN: formatHostPort({ host, port: Number(port) }),
}

async function imdsApi(args: readonly string[], env: Readonly<Record<string, string>> = {}) {
  const { status, stdout, stderr } = await run([process.execPath, IMDS_API, ...args], { env: { ...BESIDE, ...env } })
  return { status, stdout: stdout.toString(), stderr }
}

t.test('doctor prints what it and the service have checked', async (t) => {
  const { status, stdout } = await imdsApi(['doctor'])
  t.equal(status, 0, stdout)
  for (const check of ['configuration', 'store', 'service']) t.match(stdout, new RegExp(`^ok +${check} `, 'm'))
  t.match(stdout, /^\d+ ok, 0 warnings, 0 failures$/m)
  t.match(JSON.parse((await imdsApi(['doctor', '--json'])).stdout), {
    failures: 0,
    checks: [{ code: 'service', severity: 'ok' }, { code: 'configuration' }, { code: 'files' }, { code: 'store' }],
  })
})

t.test('what is wrong has its remedy, and the exit status is 1 or 2', async (t) => {
  t.match(await imdsApi(['doctor'], { IMDS_API_ACCESS_TOKEN_SECONDS: '0', IMDS_API_LISTEN_: 'x' }), {
    status: 2,
    stdout:
      /^failure +configuration +IMDS_API_ACCESS_TOKEN_SECONDS .+\. Remedy: correct it in \/etc\/imds\/imds-api\.env/m,
  })
  t.match(await imdsApi(['doctor'], { IMDS_API_LISTEN_: 'x' }), {
    status: 1,
    stdout: /^warning +configuration +IMDS_API_LISTEN_ .*is no variable of imds-api/m,
  })
  await redis.kill()
  t.match(await imdsApi(['doctor']), {
    status: 2,
    stdout: /^failure +store +.*ECONNREFUSED.*\. Remedy: start Redis/m,
  })
  t.equal(await api.stop(), 0)
  t.match(await imdsApi(['doctor']), {
    status: 2,
    stdout: /^failure +service +it does not answer: .*ECONNREFUSED.*\. Remedy: systemctl start imds-api, /m,
  })
})
