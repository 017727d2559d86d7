/** The files in deploy/ (Prometheus configuration, alerts, example environment, Redis users) and of the images. */
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { connect } from 'node:net'
import t from 'tap'
import { parse as parseYaml } from 'yaml'
import { CONDITIONS } from '../../src/imdsd/conditions/table.ts'
import { API_VARIABLES, parseApiConfig } from '../../src/imds-api/service/config.ts'
import { parseConfig, VARIABLES } from '../../src/imdsd/config.ts'
import { startDaemon } from '../support/programs/daemon.ts'

interface Alert {
  readonly alert: string
  readonly expr: string
  readonly labels: { severity: string }
  readonly annotations: { summary: string; description: string }
}

const ROOT = new URL('../../', import.meta.url).pathname
const read = (path: string) => readFileSync(ROOT + path, 'utf8')
const alerts = (parseYaml(read('deploy/alerts.yml')) as { groups: { rules: Alert[] }[] }).groups.flatMap(
  ({ rules }) => rules,
)
const environmentOf = (path: string) =>
  Object.fromEntries(
    read(path)
      .split('\n')
      .filter((line) => /^\w/.test(line))
      .map((line) => line.split(/=(.*)/s).slice(0, 2) as [string, string]),
  )
const envFile = environmentOf('deploy/imds.env')

const skip =
  spawnSync('promtool', ['--version']).error !== undefined &&
  'promtool is missing: Debian has it in the package prometheus'

for (const [what, args] of Object.entries({
  'the scrape configuration': ['check', 'config', 'deploy/prometheus.yml'],
  'every alert rule': ['check', 'rules', 'deploy/alerts.yml'],
  'the unit tests of the alert rules': ['test', 'rules', 'deploy/alerts.test.yml'],
  'every recording rule': ['check', 'rules', 'deploy/recording.yml'],
  'the unit tests of the recording rules': ['test', 'rules', 'deploy/recording.test.yml'],
})) {
  t.test(`promtool accepts ${what}`, { skip }, (t) => {
    const { status, stdout, stderr } = spawnSync('promtool', args, { cwd: ROOT, encoding: 'utf8' })
    t.equal(status, 0, stdout + stderr)
    t.end()
  })
}

t.test('every alert has a severity, instructions and a unit test in which it fires', (t) => {
  const tests = read('deploy/alerts.test.yml')
  for (const { alert, labels, annotations } of alerts) {
    t.match(tests, `alertname="${alert}"`, alert)
    t.match(labels.severity, /^(critical|warning)$/, alert)
    t.ok(annotations.summary !== '' && annotations.description.length > 150, alert)
  }
  t.end()
})

t.test('a running daemon exports every metric and label that the alerts use', async (t) => {
  const daemon = await startDaemon(t, { IMDS_STORE: 'file:/nonexistent' })
  await daemon.get('/latest/meta-data/')
  const text = (await daemon.operator('/metrics')).body.toString()
  const exported = new Set(Array.from(text.matchAll(/^[a-z_]+/gm), ([name]) => name))
  const used = new Set(
    alerts
      .flatMap(({ expr }) => Array.from(expr.matchAll(/\b(?:imds|process)_[a-z_]+/g), ([name]) => name))
      .filter((name) => !name.startsWith('imds_api_')),
  )
  t.ok(used.size >= 4, 'the names are found in the rules')
  for (const name of used) t.ok(exported.has(name), name)
  for (const { expr } of alerts)
    for (const [label] of expr.matchAll(/\b(?:result|reason)="[^"]+"/g)) t.match(text, label)
})

t.test('the command of the condition descriptors counts the connections of each peer', async (t) => {
  const { remedy } = CONDITIONS.find(({ code }) => code === 'descriptors')!
  const [, command] = /^(ss .*sort -n) shows/.exec(remedy)!
  const daemon = await startDaemon(t, { IMDS_STORE: 'file:/nonexistent' })
  for (const [localAddress, count] of [
    ['127.0.0.2', 1],
    ['127.0.0.3', 3],
  ] as const) {
    for (let i = 0; i < count; i++) {
      const socket = connect({ port: daemon.guestPort, host: '127.0.0.1', localAddress })
      t.teardown(() => socket.destroy())
      await once(socket, 'connect')
    }
  }
  const { status, stdout } = spawnSync('sh', ['-euc', command!.replace(':80', `:${daemon.guestPort}`)], {
    encoding: 'utf8',
  })
  t.equal(status, 0)
  t.match(stdout, /^ *1 127\.0\.0\.2\n *3 127\.0\.0\.3\n$/)
})

t.test('the scrape targets have the default port of the operator API', (t) => {
  const { scrape_configs: jobs } = parseYaml(read('deploy/prometheus.yml')) as {
    scrape_configs: { job_name: string; static_configs: { targets: string[] }[] }[]
  }
  for (const {
    job_name,
    static_configs: [config],
  } of jobs) {
    const listener =
      job_name === 'imds' ? VARIABLES.IMDS_OPERATOR_LISTEN.default : API_VARIABLES.IMDS_API_OPERATOR_LISTEN.default
    for (const target of config!.targets) t.equal(target.split(':')[1], listener.split(':')[1], target)
  }
  t.end()
})

t.test('the example environment is a valid configuration without unknown variables and without secrets', (t) => {
  t.match(parseConfig(envFile), { ok: true, unknown: [] })
  t.notMatch(read('deploy/imds.env'), /PASSWORD_FILE=|:\/\/[^/]*:[^/]*@/)
  t.match(parseApiConfig(environmentOf('deploy/imds-api.env')), { ok: true, unknown: [] })
  t.notMatch(read('deploy/imds-api.env'), /:\/\/[^/]*:[^/]*@/)
  t.end()
})

t.test('the images contain only listed files: no node_modules, no .git and no local files', (t) => {
  const lines = read('.dockerignore')
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'))
  t.same(lines, ['*', '!package.json', '!LICENSE', '!dist'])
  t.end()
})

t.test('the image and the unit of the daemon start Node.js with the same options', (t) => {
  const [, ofImage] = /^ENTRYPOINT \["node", (.*), "dist\/main\.js"\]$/m.exec(read('Dockerfile'))!
  const [, ofUnit] = /^ExecStart=\S+ (.*) \S+\/main\.js$/m.exec(read('systemd/imds.service'))!
  t.equal(ofImage!.replaceAll(/[",]/g, ''), ofUnit)
  t.end()
})
