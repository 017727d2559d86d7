/** The new seeds that `npm test` gives to the worlds: they follow from the code, so a failure repeats until it changes. */
import { spawnSync } from 'node:child_process'
import { hash } from 'node:crypto'

/** The arguments of `npm run world` for so many, after others. Outside of a Git repository they are different at each run. */
export function newSeeds(count: number, after = 0): string[] {
  const { stdout } = spawnSync('git', ['rev-parse', 'HEAD:src', 'HEAD:test/world'], { encoding: 'utf8' })
  const from = stdout === '' ? [] : ['--from', String(Number.parseInt(hash('sha256', stdout).slice(0, 8), 16) + after)]
  return ['--seeds', String(count), ...from]
}
