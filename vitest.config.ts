export { config as default }

const config = { test: { include: ['test/{unit,contract}/**/*.test.ts'], testTimeout: 60_000 } }
