/** The man pages and the completion of all programs, from the definitions that their --help prints. */
import { buildProgram as buildApi } from '../imds-api/commands/arguments.ts'
import { API_VARIABLES } from '../imds-api/service/config.ts'
import { buildProgram as buildImdsctl } from '../imdsctl/imdsctl.ts'
import { buildProgram as buildImdsd } from '../imdsd/arguments.ts'
import { VARIABLES } from '../imdsd/config.ts'
import { Output } from '../runtime/output.ts'
import { describeVariables } from '../runtime/variables.ts'
import { bashCompletion } from './bash.ts'
import { programPage, variablesPage } from './man-page.ts'

/** Nothing runs: these programs only describe themselves. */
const ignore = () => undefined
const NO_ACTIONS = {} as Parameters<typeof buildApi>[1]

/** The files by their paths: `man/NAME.SECTION` and `completions/bash/NAME`. */
export function manualFiles(): Readonly<Record<string, string>> {
  const output = new Output('', process.stdout, process.stderr, ignore)
  const imdsctl = buildImdsctl({ output, env: {}, own: {}, onStatus: ignore })
  const imdsd = buildImdsd()
  const api = buildApi(output, NO_ACTIONS)
  const variables = { text: describeVariables(VARIABLES), page: 'imds.env(5)' }
  const apiVariables = { text: describeVariables(API_VARIABLES), page: 'imds-api.env(5)' }
  return {
    'man/imdsctl.1': programPage(
      imdsctl,
      { name: 'imdsctl', section: 1, seeAlso: ['imds.env(5)', 'imdsd(8)'] },
      undefined,
    ),
    'man/imdsd.8': programPage(imdsd, { name: 'imdsd', section: 8, seeAlso: ['imdsctl(1)', 'imds.env(5)'] }, variables),
    'man/imds-api.8': programPage(
      api,
      { name: 'imds-api', section: 8, seeAlso: ['imds-api.env(5)', 'imdsctl(1)'] },
      apiVariables,
    ),
    'man/imds.env.5': variablesPage(VARIABLES, {
      name: 'imds.env',
      section: 5,
      program: 'imdsd',
      seeAlso: ['imdsd(8)', 'imdsctl(1)', 'systemd.exec(5)'],
    }),
    'man/imds-api.env.5': variablesPage(API_VARIABLES, {
      name: 'imds-api.env',
      section: 5,
      program: 'imds-api',
      seeAlso: ['imds-api(8)', 'systemd.exec(5)'],
    }),
    ...Object.fromEntries(
      [imdsctl, imdsd, api].map((program) => [`completions/bash/${program.name()}`, bashCompletion(program)]),
    ),
  }
}
