/**
 * One file for each program, with the libraries that it uses: a start reads a handful of files instead of hundreds, which makes it
 * three times as fast. Declarations for the library come from tsc.
 */
import { defineConfig } from 'rolldown'

const config = defineConfig({
  input: { main: 'src/main.ts', imdsctl: 'src/cli/imdsctl.ts', library: 'src/library.ts' },
  platform: 'node',
  output: { dir: 'dist', format: 'esm', cleanDir: true },
})

export { config as default }
