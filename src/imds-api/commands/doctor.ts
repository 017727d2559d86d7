/** `imds-api doctor`: whether the control plane of this host is well. */
import { failure, ok, printChecks, runChecks, warning, type Check, type CheckResult } from '../../runtime/check.ts'
import { formatHostPort } from '../../runtime/host-port.ts'
import type { Output } from '../../runtime/output.ts'
import { readSecretFile } from '../../runtime/setting-files.ts'
import type { ParsedVariables, VariableFault } from '../../runtime/variables.ts'
import { VERSION } from '../../runtime/installation.ts'
import { probeStore, storeOfPublisher } from '../../store/probe.ts'
import type { ApiConfig } from '../service/config.ts'
import type { ServiceConditions } from '../service/operator.ts'

/** The configuration of the service, and what is wrong with the files that it names. */
export interface ServiceConfiguration {
  readonly parsed: ParsedVariables<ApiConfig>
  readonly fileFaults: readonly VariableFault[]
}

const TIMEOUT_MS = 7_000
const READABLE =
  'correct the file; a key that only root may read needs a drop-in, such as api-tls.conf (docs/install.md#secrets)'
const CORRECT = 'correct it in /etc/imds/imds-api.env, then systemctl restart imds-api'

const CHECKS: readonly Check<ServiceConfiguration>[] = [
  {
    code: 'configuration',
    run: ({ parsed }) => {
      if (!parsed.ok) return parsed.faults.map(({ variable, message }) => failure(`${variable} ${message}`, CORRECT))
      const { unknown } = parsed
      return unknown.length === 0
        ? [ok('it is valid')]
        : unknown.map((name) => warning(`${name} is no variable of imds-api, and is ignored`, CORRECT))
    },
  },
  {
    code: 'files',
    run: ({ fileFaults }) =>
      fileFaults.length === 0
        ? [ok('the service can read each file of its variables')]
        : fileFaults.map(({ variable, message }) => failure(`${variable} ${message}`, READABLE)),
  },
  {
    code: 'store',
    run: ({ parsed }) => (parsed.ok ? probeStore(storeOfPublisher(parsed.value.store)) : []),
  },
]

/** Prints the result of each check, those of the service itself included. Returns the exit status. */
export async function doctor(configuration: ServiceConfiguration, output: Output): Promise<number> {
  return printChecks(output, await findAll(configuration))
}

/** What is found in the configuration and the store, and what the service itself has found. */
async function findAll(configuration: ServiceConfiguration): Promise<readonly CheckResult[]> {
  const { parsed } = configuration
  const results = runChecks(CHECKS, configuration)
  return parsed.ok ? [...(await findInService(parsed.value)), ...(await results)] : results
}

async function findInService(config: ApiConfig): Promise<readonly CheckResult[]> {
  try {
    const { version, conditions } = await askService(config)
    const finding =
      version === VERSION
        ? ok(`it answers, and is ${version}`)
        : warning(`it is ${version}, and this command is ${VERSION}`, 'systemctl restart imds-api')
    return [{ code: 'service', ...finding }, ...conditions]
  } catch (error) {
    const { message, cause } = error as Error & { cause?: Error }
    const text = `it does not answer: ${cause?.message ?? message}`
    return [{ code: 'service', ...failure(text, 'systemctl start imds-api, and see journalctl -u imds-api -n 50') }]
  }
}

/** Asks the listener for operators. Rejects if it does not answer, or not with 200. */
async function askService({ operator }: ApiConfig): Promise<ServiceConditions> {
  const { passwordFile } = operator
  const headers: Record<string, string> =
    passwordFile === undefined
      ? {}
      : { authorization: `Basic ${Buffer.from(`imds-api:${readSecretFile(passwordFile)}`).toString('base64')}` }
  const response = await fetch(`http://${formatHostPort(operator)}/conditions`, {
    headers,
    signal: AbortSignal.timeout(TIMEOUT_MS),
  })
  if (response.status !== 200) throw new Error(`/conditions has status ${response.status}`)
  return (await response.json()) as ServiceConditions
}
