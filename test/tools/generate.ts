/**
 * Generates tables and lists of the documents and the alert rules over conditions from the code. `node test/tools/generate.ts`
 * writes them; test/unit/docs.test.ts checks that they are up to date.
 *
 * Each is between `<!-- generated: NAME -->` and `<!-- end -->`.
 */
import { writeFileSync } from 'node:fs'
import type { Registry } from 'prom-client'
import { format } from 'oxfmt'
import { parse as parseYaml } from 'yaml'
import { DOCUMENTS as LAYOUT } from '../../oxfmt.config.ts'
import { ACCOUNT_LIMITS } from '../../src/imds-api/model/account-limits.ts'
import { API_VARIABLES } from '../../src/imds-api/service/config.ts'
import { VARIABLES } from '../../src/imdsd/config.ts'
import type { VariableTable } from '../../src/runtime/variables.ts'
import { buildApiMetrics, type ApiMetricsSources } from '../../src/imds-api/service/metrics.ts'
import { RequestMeter } from '../../src/imdsd/guest/meter.ts'
import { CATEGORIES } from '../../src/metadata/categories.ts'
import { VERSIONS } from '../../src/metadata/versions.ts'
import { Metrics, type MetricsSources } from '../../src/imdsd/metrics.ts'
import { always, type Condition, type Meaning } from '../../src/conditions/condition.ts'
import { ALERTS } from '../../src/conditions/alerts.ts'
import { EVENTS } from '../../src/conditions/events.ts'
import { API_EVENTS } from '../../src/imds-api/conditions/events.ts'
import { API_CONDITIONS } from '../../src/imds-api/conditions/table.ts'
import { DAEMON_EVENTS } from '../../src/imdsd/conditions/events.ts'
import { CONDITIONS } from '../../src/imdsd/conditions/table.ts'
import { ADMIN_USER, DEFAULT_USER, formatDaemonUser, formatPublisherUser } from '../../src/store/redis/acl.ts'
import { DOCUMENTS, read, ROOT } from './documents.ts'
import { recordTable } from './record-table.ts'

const ALL_CONDITIONS: readonly AnyCondition[] = [...CONDITIONS, ...API_CONDITIONS]

const TABLES: Readonly<Record<string, () => string | Promise<string>>> = {
  record: recordTable,
  variables: () => variableList(VARIABLES),
  'api-variables': () => variableList(API_VARIABLES),
  categories: categoryList,
  metrics: metricList,
  'api-metrics': apiMetricList,
  alerts: alertList,
  conditions: () => conditionList(CONDITIONS),
  'api-conditions': () => conditionList(API_CONDITIONS),
  events: () => codeList(EVENTS),
  'daemon-events': () => codeList(DAEMON_EVENTS),
  'api-events': () => codeList(API_EVENTS),
  'account-limits': accountLimitList,
}

/** A document with up-to-date tables. */
export async function generated(text: string): Promise<string> {
  let result = text
  for (const [name, table] of Object.entries(TABLES)) {
    const [start, end] = [`<!-- generated: ${name} -->\n`, '<!-- end -->']
    const from = result.indexOf(start)
    if (from === -1) continue
    result = `${result.slice(0, from)}${start}${await table()}\n${result.slice(result.indexOf(end, from))}`
  }
  return (await format('README.md', result, LAYOUT)).code
}

function asList(rows: readonly (readonly [name: string, text: string])[]): string {
  return rows.map(([name, text]) => `- ${name}: ${text}`).join('\n')
}

/** The categories by their first version, with MAC for the directory of an interface. */
function categoryList(): string {
  const visible = Map.groupBy(CATEGORIES, ({ since }) => VERSIONS.find((version) => version >= since) ?? since)
  const name = (pattern: string) =>
    `\`${pattern.replace('meta-data/', '').replace('network/interfaces/macs/{mac}', 'MAC')}\``
  return [...visible]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([version, categories]) => `- \`${version}\`: ${categories.map(({ pattern }) => name(pattern)).join(', ')}`)
    .join('\n')
}

/** The variables of a program in their sections, without those of the store that imds-api has from imdsd. */
function variableList(table: VariableTable): string {
  const own = Object.entries(table).filter(([name]) => table === VARIABLES || name.startsWith('IMDS_API_'))
  return [...Map.groupBy(own, ([, row]) => row.section)]
    .map(([section, rows]) => {
      const items = rows.map(([name, { help, default: otherwise = '' }]) => {
        const value = otherwise === '' ? '' : ` (\`${otherwise}\`)`
        return [`\`${name}\`${value}`, help] as const
      })
      return `### ${section}\n\n${asList(items)}\n`
    })
    .join('\n')
}

async function metricList(): Promise<string> {
  const metrics = new Metrics()
  metrics.setSources({ meter: new RequestMeter() } as unknown as MetricsSources) // enough for the declarations: no value is read
  return listOfMetrics(metrics.registry)
}

async function apiMetricList(): Promise<string> {
  return listOfMetrics(buildApiMetrics({ database: {} } as ApiMetricsSources).registry, 'imds_api_') // enough for the declarations
}

async function listOfMetrics(registry: Registry, prefix = 'imds_'): Promise<string> {
  interface Declared {
    readonly name: string
    readonly help?: string
    readonly labelNames?: readonly string[]
    get(): Promise<{ readonly help: string }>
  }
  const declared = (registry.getMetricsAsArray() as unknown as Declared[])
    .filter(({ name }) => name.startsWith(prefix))
    .sort((a, b) => (a.name < b.name ? -1 : 1))
  const rows = await Promise.all(
    declared.map(async (metric) => {
      const { help = '' } = metric.help === undefined ? await metric.get() : metric
      const labels = (metric.labelNames ?? []).map((label) => `\`${label}\``).join(', ')
      return [`\`${metric.name}\`${labels === '' ? '' : ` (${labels})`}`, help] as const
    }),
  )
  return asList(rows)
}

/** What a code means. What guests do not notice is left out. */
function meaningOf({ what, guests, remedy }: Meaning): string {
  return `${what} ${guests === 'nothing.' ? '' : `Guests: ${guests} `}**Do**: ${remedy}.`
}

/** `explain CODE` says what each means. */
function codeList(table: readonly { readonly code: string }[]): string {
  return `${table.map(({ code }) => `\`${code}\``).join(', ')}.`
}

type AnyCondition = Omit<Condition<never>, 'found'>

function conditionList(table: readonly AnyCondition[]): string {
  return asList(
    table.map((row) => [
      `\`${row.code}\` (${row.severity}${row.isUnready === undefined ? '' : row.isUnready === always ? ', not ready' : ', not ready at the start'})`,
      meaningOf(row),
    ]),
  )
}

interface Alert {
  readonly alert: string
  readonly for?: string
  readonly labels: { readonly severity: string }
}

/** The alerts besides those over imds_condition. */
function alertList(): string {
  const { groups } = parseYaml(read('deploy/alerts.yml')) as {
    groups: readonly { readonly name: string; readonly rules: readonly Alert[] }[]
  }
  return asList(
    groups
      .filter(({ name }) => name !== 'conditions')
      .flatMap(({ rules }) => rules)
      .map(({ alert, for: duration, labels: { severity } }) => [
        `**${alert}** (${severity}, ${duration === undefined ? 'at once' : `after ${duration}`})`,
        alertNamed(alert).what,
      ]),
  )
}

function descriptionOf(row: Meaning): string {
  return meaningOf(row).replaceAll('**', '')
}

function alertNamed(name: string): Meaning {
  return ALERTS.find(({ code }) => code === name)!
}

/** deploy/alerts.yml, with a rule over imds_condition for each severity. The descriptions are the rows of the codes. */
export function alertRules(text: string): string {
  const rules = (['failure', 'warning'] as const).map((severity) => {
    const rows = new Map(ALL_CONDITIONS.filter((row) => row.severity === severity).map((row) => [row.code, row]))
    const cases = [...rows].map(([code, row]) => `if eq $labels.code "${code}" }}${descriptionOf(row)}{{`)
    const description = `{{ ${cases.join(' else ')} end }}`
    return `      - alert: ${severity === 'failure' ? 'ImdsFailure' : 'ImdsWarning'}
        expr: imds_condition{severity="${severity}"} == 1
        for: ${severity === 'failure' ? '2m' : '15m'}
        labels:
          severity: ${severity === 'failure' ? 'critical' : 'warning'}
        annotations:
          runbook: docs/operations/conditions.md
          summary: "{{ $labels.instance }}: {{ $labels.code }}"
          description: ${JSON.stringify(description)}
`
  })
  const [start, end] = ['      # generated: conditions\n', '      # end of generated\n']
  const others = text
    .slice(text.indexOf(end))
    .replace(/(- alert: (\w+)\n[^]*? description: ).*/g, (_match, before: string, name: string) => {
      return `${before}${JSON.stringify(descriptionOf(alertNamed(name)))}`
    })
  return `${text.slice(0, text.indexOf(start))}${start}${rules.join('\n')}${others}`
}

function accountLimitList(): string {
  return asList(
    Object.entries(ACCOUNT_LIMITS).map(([name, rule]) => [
      `\`${name}\` (${rule.default.toLocaleString('en')})`,
      rule.of,
    ]),
  )
}

/** deploy/redis.acl, with the names of the other templates. */
export function redisAcl(): string {
  return `${[DEFAULT_USER, ADMIN_USER, formatDaemonUser('gb1', 'hv1'), formatPublisherUser('gb1')].join('\n')}\n`
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  writeFileSync(`${ROOT}deploy/alerts.yml`, alertRules(read('deploy/alerts.yml')))
  for (const document of DOCUMENTS) {
    const text = read(document)
    const now = await generated(text)
    if (now !== text) writeFileSync(`${ROOT}${document}`, now)
  }
  writeFileSync(`${ROOT}deploy/redis.acl`, redisAcl())
}
