/**
 * Which test files the changes since main can reach: by imports, by the programs that they start, and by the folders
 * and documents that they name.
 */
import { execFileSync } from 'node:child_process'
import { existsSync, globSync, readFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { ROOT } from './documents.ts'

const PATHS = 'test/support/programs/imds.ts'
/** What a file that has the word can start. PATHS declares these words. */
const PROGRAMS: readonly (readonly [word: RegExp, main: string])[] = [
  [/\bIMDSD\b/, 'src/imdsd/main.ts'],
  [/\bIMDSCTL\b/, 'src/imdsctl/main.ts'],
  [/\bIMDS_API\b/, 'src/imds-api/main.ts'],
  [/\bLIBRARY\b/, 'src/library.ts'],
  [/\bbuildInto\b|npm start|rolldown/, 'src/start.ts'],
]
/** Folders and files that a test can read. */
const READ = /\b(?:deploy|systemd|docs)\/|README\.md|CHANGELOG\.md|CONTRIBUTING\.md|Dockerfile|\.ci\/run/g
/** A change of these reaches all tests. */
const REACHES_ALL = /^(package(-lock)?\.json|tsconfig.*|vitest\.config\.ts|rolldown\.config\.js|test\/tools\/)/

/** The files that differ from their state when this branch left main. On main itself: from the last commit. */
export function changedFiles(): readonly string[] {
  const git = (...args: readonly string[]) => execFileSync('git', args, { cwd: ROOT, encoding: 'utf8' }).trim()
  const base = git('merge-base', 'HEAD', git('rev-parse', '--abbrev-ref', 'HEAD') === 'main' ? 'HEAD~1' : 'main')
  const untracked = git('ls-files', '--others', '--exclude-standard')
  return [...git('diff', '--name-only', base).split('\n'), ...untracked.split('\n')].filter((path) => path !== '')
}

/** The test files, of those given, that a change of some files can reach. */
export function reachedTests(tests: string[], changed: readonly string[]): string[] {
  if (changed.some((path) => REACHES_ALL.test(path))) return tests
  const edges = new Map(
    globSync('{src,test}/**/*.{ts,lua}', { cwd: ROOT }).map((path) => [path, [...edgesOf(path)]] as const),
  )
  return tests.filter((test) => {
    const reached = new Set([test])
    for (const path of reached) for (const next of edges.get(path) ?? []) reached.add(next)
    return changed.some(
      (path) => reached.has(path) || [...reached].some((one) => one.endsWith('/') && path.startsWith(one)),
    )
  })
}

function* edgesOf(path: string): Generator<string> {
  const text = readFileSync(join(ROOT, path), 'utf8')
  for (const [, target] of text.matchAll(/(?:from '|import\('|new URL\(')(\.?[\w./-]+)'/g)) {
    const file = relative(ROOT, join(ROOT, path, '..', target!))
    if (existsSync(join(ROOT, file))) yield file
  }
  if (!path.startsWith('test/') || path === PATHS) return
  for (const [word, main] of PROGRAMS) if (word.test(text)) yield main
  for (const [name] of text.matchAll(READ)) yield name
}
