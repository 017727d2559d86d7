/**
 * What a bug report needs, as one text that its author can read before sending it. A program names its sections; those
 * of its service and of the host are the same for all.
 *
 * It has no record, no user-data, no key, no password and no token: it reads no file that has one, and redact.ts searches
 * all of it.
 */
import { writeFileSync } from 'node:fs'
import { runCommand } from '../runtime/command.ts'
import { parseEnvironmentFile } from '../runtime/environment-file.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'
import type { Service } from '../runtime/service-environment.ts'
import { readUnit } from '../runtime/unit-file.ts'
import type { Environment, VariableTable } from '../runtime/variables.ts'
import { VERSION } from '../runtime/version.ts'
import { redactLines, redactUnits, type IsPublic } from './assignments.ts'
import { buildRedaction } from './redact.ts'
import { findSecrets, formatVariables, publicVariables, readIfPossible } from './secrets.ts'

export interface BugreportParts {
  readonly program: string
  readonly service: Service
  /** Units besides that of the service. */
  readonly units: readonly string[]
  /** In place of the environment files of the service. */
  readonly environmentFile: string | undefined
  /** The environment of the command, with the variables of the service. */
  readonly variables: Environment
  /** The variables whose values a report may have. */
  readonly table: VariableTable
  /** Files of secrets that no variable names. */
  readonly secretFiles: readonly string[]
  /** More commands whose output it has. None changes anything. */
  readonly commands: readonly (readonly string[])[]
  /** By title. A section that throws has its error. */
  readonly sections: Readonly<Record<string, () => Promise<string>>>
}

/** The most characters of one section: the end of a log says more than its beginning. */
const MAX_PER_SECTION = 256 * 1024
const LOG_LINES = '1000'

/** Writes a bug report to a file that does not exist yet, or to standard output (`-`). */
export async function writeBugreport(output: Output, parts: BugreportParts, file: string | undefined): Promise<void> {
  const now = new Date().toISOString()
  const text = await buildBugreport(parts, now)
  if (file === '-') {
    output.print(text)
    return
  }
  const path = file ?? `imds-bugreport-${now.replaceAll(/[-:]|\.\d+/g, '')}.txt`
  try {
    writeFileSync(path, text, { flag: 'wx', mode: 0o600 })
  } catch (error) {
    throw new CommandFailure(EXIT.noInput, `${path} cannot be written: ${(error as Error).message}`)
  }
  output.result({ file: path }, `wrote ${path}: read it before you send it; it has no secrets that imds knows of`)
}

async function buildBugreport(parts: BugreportParts, now: string): Promise<string> {
  const { program, service, environmentFile, table } = parts
  const isPublic = publicVariables(table)
  const units = [service.name, ...parts.units]
  const installed = units.map((name) => readUnit(name))
  const environments = installed.map((unit) => {
    const files = environmentFile === undefined ? (unit?.environmentFiles ?? [service.file]) : [environmentFile]
    return [unit?.environment ?? {}, ...files.map((path) => parseEnvironmentFile(readIfPossible(path) ?? '').variables)]
  })
  const own = Object.fromEntries(Object.entries(parts.variables).filter(([name]) => name.startsWith('IMDS_')))
  const redact = buildRedaction(findSecrets(installed, [...environments.flat(), own], parts.secretFiles, isPublic))
  const variables = Object.assign({}, ...(environments[0] ?? []), own) as Environment
  const sections = await Promise.all([
    ...Object.entries(parts.sections).map(async ([title, read]) => [
      title,
      await read().catch((error: unknown) => `(${(error as Error).message})`),
    ]),
    ...[...commandsOf(units), ...parts.commands].map(async (command) => [
      `$ ${command.join(' ')}`,
      redactOutput(command, (await runCommand(command))?.stdout ?? '(it cannot be run)', isPublic),
    ]),
  ])
  // Redacted before it is cut: a cut could leave the half of a secret.
  return [
    ['report', `${program} ${VERSION}, Node.js ${process.versions.node}, ${now}`],
    ['variables', formatVariables(variables, isPublic)],
    ...sections,
  ]
    .map(([title = '', text = '']) => `===== ${title}\n${redact(text).slice(-MAX_PER_SECTION).trimEnd()}\n`)
    .join('\n')
}

function commandsOf(units: readonly string[]): readonly (readonly string[])[] {
  return [
    ['uname', '-srvm'],
    ['cat', '/etc/os-release'],
    ['systemctl', 'status', '--no-pager', '--lines=0', ...units],
    ['systemctl', 'cat', '--no-pager', ...units],
    ['journalctl', '--no-pager', '--output=short-iso', '-n', LOG_LINES, ...units.map((unit) => `--unit=${unit}`)],
    ['ss', '-Hltnp'],
    ['timedatectl'],
  ]
}

/** Removes the values of variables from the output of systemd's commands. */
function redactOutput([program, command]: readonly string[], text: string, isPublic: IsPublic): string {
  if (program === 'systemctl' && command === 'cat') return redactUnits(text, isPublic)
  return program === 'systemctl' || program === 'journalctl' ? redactLines(text, isPublic) : text
}
