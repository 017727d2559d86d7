export { config as default }

/** No test changes what its file shares with others (a module, the environment), so that workers need not be made anew for each file. */
const config = {
  test: { include: ['test/{unit,contract}/**/*.test.ts'], testTimeout: 60_000, isolate: false, pool: 'threads' },
}
