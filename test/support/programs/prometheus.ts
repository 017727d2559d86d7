/** A real Prometheus with the configuration of deploy/, on other targets. It ends with the test at the latest. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { parse, stringify } from 'yaml'
import { freePort } from '../redis/redis.ts'
import { testDirectory } from '../test-directory.ts'
import { until } from './daemon.ts'

/** A running Prometheus. `query` returns the samples of an instant query; `labelValues` those of a label. */
export interface TestPrometheus {
  query(expression: string): Promise<readonly { readonly value: readonly [time: number, value: string] }[]>
  labelValues(label: string, series: string): Promise<readonly string[]>
}

const DEPLOY = new URL('../../../deploy/', import.meta.url).pathname

/** Starts Prometheus: it scrapes `targets` (by job) and evaluates the rules every second. */
export async function startPrometheus(
  t: Test,
  targets: Readonly<Record<string, readonly string[]>>,
): Promise<TestPrometheus> {
  interface Configuration {
    global: Record<string, string>
    rule_files: string[]
    scrape_configs: { job_name: string; static_configs: { targets: readonly string[] }[] }[]
  }
  const configuration = parse(readFileSync(`${DEPLOY}prometheus.yml`, 'utf8')) as Configuration
  configuration.global = { scrape_interval: '1s', evaluation_interval: '1s' }
  configuration.rule_files = configuration.rule_files.map((name) => `${DEPLOY}${name}`)
  for (const job of configuration.scrape_configs) job.static_configs = [{ targets: targets[job.job_name]! }]
  const directory = testDirectory(t)
  writeFileSync(join(directory, 'prometheus.yml'), stringify(configuration))
  const address = `127.0.0.1:${await freePort()}`
  const child = spawn(
    'setpriv',
    [
      ...['--pdeathsig', 'KILL', 'prometheus', '--log.level=error', `--web.listen-address=${address}`],
      ...[`--config.file=${join(directory, 'prometheus.yml')}`, `--storage.tsdb.path=${join(directory, 'data')}`],
    ],
    { stdio: ['ignore', 'ignore', 'inherit'] },
  )
  const ended = once(child, 'exit')
  t.teardown(async () => {
    child.kill('SIGKILL')
    await ended
  })
  const get = async (path: string, parameters: Readonly<Record<string, string>>) => {
    const response = await fetch(`http://${address}/api/v1/${path}?${new URLSearchParams(parameters).toString()}`)
    const answer = (await response.json()) as { status: string; error?: string; data: unknown }
    if (answer.status !== 'success') throw new Error(`${JSON.stringify(parameters)}: ${String(answer.error)}`)
    return answer.data
  }
  await until(
    () =>
      fetch(`http://${address}/-/ready`).then(
        ({ ok }) => ok || child.exitCode !== null,
        () => child.exitCode !== null,
      ),
    'Prometheus to be ready',
  )
  return {
    query: async (query) => ((await get('query', { query })) as { result: [] }).result,
    labelValues: async (label, series) => (await get(`label/${label}/values`, { 'match[]': series })) as string[],
  }
}
