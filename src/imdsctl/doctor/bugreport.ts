/**
 * What a bug report needs, as one text that its author can read before sending it.
 *
 * It has no record, no user-data, no key, no password and no session token: it reads no file that has one, and redact.ts
 * searches all of it. It has ids and addresses of instances, where something is wrong with them.
 */
import { rowOf, type CheckResult } from '../../runtime/check.ts'
import type { HostState } from '../../imdsd/checks/host-state.ts'
import { redactLines, redactUnits, type IsPublic } from './assignments.ts'
import { formatRows } from '../../runtime/table.ts'
import { plain } from '../../runtime/terminal.ts'

/** What a report is made of besides the commands. */
export interface Facts {
  readonly look: HostState
  readonly results: readonly CheckResult[]
  /** The variables of the service, as secrets.ts formats them. */
  readonly variables: string
  readonly isPublic: IsPublic
  readonly node: string
  readonly now: Date
}

/** The most characters of one section: the end of a log says more than its beginning. */
const MAX_PER_SECTION = 256 * 1024
const LOG_LINES = '1000'
const UNITS = ['imds.service', 'imds.socket', 'imds-address.service', 'imds-firewall.service', 'imds-network@*.socket']

/** The commands whose output a report has. None changes anything. */
function commandsOf(stateDirectory: string | undefined): readonly (readonly string[])[] {
  return [
    ['uname', '-srvm'],
    ['cat', '/etc/os-release'],
    ['systemctl', 'status', '--no-pager', '--lines=0', ...UNITS],
    ['systemctl', 'cat', '--no-pager', ...UNITS],
    ['journalctl', '--no-pager', '--output=short-iso', '-n', LOG_LINES, ...UNITS.map((unit) => `--unit=${unit}`)],
    ['ip', '-brief', 'address'],
    ['ip', 'route', 'show'],
    ['ip', '-6', 'route', 'show'],
    ['ss', '-Hltnp'],
    ['nft', 'list', 'table', 'inet', 'imds'],
    ['timedatectl'],
    ...(stateDirectory === undefined
      ? []
      : [
          ['ls', '-lan', stateDirectory],
          ['df', '-k', stateDirectory],
        ]),
  ]
}

/** Removes the values of variables from the output of systemd's commands. */
function redactOutput([program, command]: readonly string[], text: string, isPublic: IsPublic): string {
  if (program === 'systemctl' && command === 'cat') return redactUnits(text, isPublic)
  return program === 'systemctl' || program === 'journalctl' ? redactLines(text, isPublic) : text
}

/** Builds the report. `redact` removes secrets from each section. */
export async function buildBugreport(facts: Facts, redact: (text: string) => string): Promise<string> {
  const { look, results, variables, isPublic, node, now } = facts
  const { config, notes } = look.settings
  const [readiness, metrics, ran] = await Promise.all([
    look.readiness(),
    look.metrics(),
    Promise.all(
      commandsOf(config?.stateDirectory).map(async (command) => {
        const output = await look.run(command)
        const text = output?.stdout ?? '(it cannot be run)'
        return [`$ ${command.join(' ')}`, redactOutput(command, text, isPublic)] as const
      }),
    ),
  ])
  const sections: readonly (readonly [title: string, text: string])[] = [
    ['report', `imdsctl ${look.version}, Node.js ${node}, ${now.toISOString()}`],
    ['doctor', formatRows(results.map(rowOf), undefined, plain).join('\n')],
    ['variables', [variables, ...notes.map((note) => `# ${note}`)].join('\n')],
    ['readyz', readiness.ok ? JSON.stringify(readiness.value, undefined, 2) : readiness.faults.join()],
    [
      'metrics',
      metrics.ok
        ? [...metrics.value].map(([name, value]) => `${name} ${String(value)}`).join('\n')
        : metrics.faults.join(),
    ],
    ...ran,
  ]
  // Redacted before it is cut: a cut could leave the half of a secret.
  return sections
    .map(([title, text]) => `===== ${title}\n${redact(text).slice(-MAX_PER_SECTION).trimEnd()}\n`)
    .join('\n')
}
