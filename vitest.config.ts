import packageJson from './package.json' with { type: 'json' }

export { config as default }

// the scripts of npm run the Node.js of node_modules
const least = Number.parseInt(packageJson.engines.node.slice('>='.length), 10)
if (Number.parseInt(process.versions.node, 10) < least) {
  console.error(`wrong Node: this is ${process.version}, and the tests need ${least}. node_modules/.bin has it`)
  process.exit(1)
}

/** No test changes what its file shares with others (a module, the environment), so that workers need not be made anew for each file. */
const config = {
  test: { include: ['test/{unit,contract}/**/*.test.ts'], testTimeout: 60_000, isolate: false, pool: 'threads' },
}
