/** Stryker's part of `npm run mutate`; mutate.ts says what is mutated and which tests run. */
const config = {
  testRunner: 'vitest',
  plugins: ['@stryker-mutator/vitest-runner'],
  vitest: { configFile: 'test/mutation/vitest.config.ts', related: false },
  mutator: { excludedMutations: ['StringLiteral'] }, // mostly the words of messages
  coverageAnalysis: 'perTest',
  ignoreStatic: true, // for code that runs when a file is loaded every test must run: 33 % of the mutants of guest would take 88 % of the time
  concurrency: 2,
  timeoutMS: 20_000, // a machine that is busy must not make a slow test look like a killed mutant
  reporters: ['json'],
  jsonReporter: { fileName: '.stryker/report.json' },
  tempDirName: '.stryker/sandbox',
  ignorePatterns: ['dist', '.tap', '.stryker'],
  disableTypeChecks: false, // types are stripped, never checked
  tsconfigFile: 'none', // Stryker rewrites it by TypeScript's JavaScript API, which TypeScript 7 has not
  allowConsoleColors: false,
}

export { config as default }
