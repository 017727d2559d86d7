/**
 * Bundles each program with the libraries that it uses, so that a start reads few files. tsc writes the type declarations of the library.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { defineConfig } from 'rolldown'
import { manualFiles } from './src/manual/manual-files.ts'
import { formatLicenses } from './deploy/licenses/licenses.ts'
import { jsonSchema } from './src/metadata/json-schema.ts'

/** Escapes all characters outside ASCII. V8 keeps the source of a program in memory, and needs more for a source that is not ASCII. */
const ascii = {
  name: 'ascii',
  generateBundle: (_options, bundle) => {
    for (const chunk of Object.values(bundle)) {
      if (chunk.type === 'chunk')
        chunk.code = chunk.code.replace(
          /[\u0080-\uffff]/g,
          (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`,
        )
    }
  },
}

/**
 * Takes the modules of Node.js by `process.getBuiltinModule`. An `import` of node:fs or node:crypto reads each export of the module, and so loads what
 * those need that nobody uses, such as Web Crypto.
 */
const builtins = {
  name: 'builtins',
  renderChunk(code) {
    const taken = code.replace(
      /^import (?:([\w$]+)(?:, )?)?(?:\* as ([\w$]+))?(?:\{ (.+) \})? from "(node:.+)";$/gm,
      (_match, byDefault, namespace, names, module) => {
        const targets = [byDefault, namespace, names && `{ ${names.replaceAll(' as ', ': ')} }`]
        return targets
          .filter((target) => target !== undefined)
          .map((target) => `const ${target} = process.getBuiltinModule("${module}");`)
          .join(' ')
      },
    )
    const left = /^import.*"node:.*/m.exec(taken)
    if (left !== null) this.error(`the plugin does not know this form of import: ${left[0]}`)
    return taken
  },
}

/**
 * Modules that a library takes when it is loaded, and uses only for what the daemon does not do: HTTPS, HTTP/2, and plugins that name a version. It loads
 * them with their first use.
 */
const DEFERRED = {
  'fastify/lib/server.js': ['node:https', 'node:http2'],
  'fastify/lib/plugin-utils.js': ['semver'],
}

const deferred = Object.entries(DEFERRED).map(([file, modules]) => ({
  name: `deferred in ${file}`,
  transform: {
    filter: { id: new RegExp(`/node_modules/${file}$`) },
    handler(code) {
      return modules.reduce((left, module) => {
        const [taken, name] = new RegExp(`^const (\\w+) = require\\('${module}'\\)$`, 'm').exec(left) ?? []
        if (taken === undefined) this.error(`it takes ${module} in a form that the plugin does not know`)
        return left.replace(taken, '').replace(new RegExp(`(?<![.\\w])${name}(?=[.(])`, 'g'), `(require('${module}'))`)
      }, code)
    },
  },
}))

/** Replaces a text of a module of ours, which must be there. */
const replaced = (file, text, replacement) => ({
  name: `replaced in ${file}`,
  transform: {
    filter: { id: new RegExp(`/src/${file}$`) },
    handler(code) {
      if (!code.includes(text)) this.error(`there is no ${text}`)
      return code.replace(text, () => replacement)
    },
  },
})

/** Puts the script into the programs: none of them needs a file beside it to publish. */
const script = replaced(
  'store/redis/publisher.ts',
  "readFileSync(new URL('publish.lua', import.meta.url), 'utf8')",
  JSON.stringify(readFileSync(`${import.meta.dirname}/src/store/redis/publish.lua`, 'utf8')),
)

/** Fastify loads these packages only for routes with a schema, which we do not have, and for tests. They are half of its code. */
const UNUSED = ['@fastify/ajv-compiler', '@fastify/fast-json-stringify-compiler', 'light-my-request']

const PROGRAMS = { main: 'imdsd', imdsctl: 'imdsctl', api: 'imds-api' }
const NODE = Number(/\d+/.exec(JSON.parse(readFileSync(`${import.meta.dirname}/package.json`, 'utf8')).engines.node)[0])

/**
 * dist/NAME.js, beside dist/NAME/ with all files of this program. It ends with one line if Node.js is too old: it has only syntax that old versions read, and
 * no import, since they could not load what dist/NAME/program.js imports.
 */
const entryOf = (name) => `if (parseInt(process.versions.node) >= ${NODE}) import('./${name}/program.js')
else {
  console.error('${PROGRAMS[name]}: this is Node.js ' + process.versions.node + ', and imds needs ${NODE} or newer')
  process.exit(70)
}
`

/** dist/bin/COMMAND, for the images. The packages have commands of their own. */
const commandOf = (name) => `#!/bin/sh
exec node "\${0%/*}/../${name}.js" "$@"
`

/** Adds the entry and the command of each program. */
const entries = {
  name: 'entries',
  generateBundle() {
    for (const [name, command] of Object.entries(PROGRAMS)) {
      this.emitFile({ type: 'asset', fileName: `${name}.js`, source: entryOf(name) })
      this.emitFile({ type: 'asset', fileName: `bin/${command}`, source: commandOf(name) })
    }
  },
}

/** Adds the files for publishers in other languages. */
const filesForPublishers = {
  name: 'files-for-publishers',
  generateBundle() {
    this.emitFile({
      type: 'asset',
      fileName: 'publish.lua',
      source: readFileSync(`${import.meta.dirname}/src/store/redis/publish.lua`),
    })
    this.emitFile({
      type: 'asset',
      fileName: 'instance.schema.json',
      source: `${JSON.stringify(jsonSchema(), null, 2)}\n`,
    })
  },
}

/** Adds the man pages and the completion for shells. */
const manual = {
  name: 'manual',
  generateBundle() {
    for (const [fileName, source] of Object.entries(manualFiles())) this.emitFile({ type: 'asset', fileName, source })
  },
}

/** What pg loads only where it is installed. */
const OUTSIDE_OF_API = ['pg-native', 'pg-cloudflare']

/** Where the static files of @fastify/swagger-ui are: in the package, and beside the program. */
const SWAGGER_UI = 'node_modules/@fastify/swagger-ui/static'
const SWAGGER_UI_IN_DIST = 'swagger-ui'

/** Adds the static files of @fastify/swagger-ui, and lets the package find them in the directory of the program. */
const swaggerUi = {
  name: 'swagger-ui',
  transform: {
    filter: { id: /@fastify\/swagger-ui\/(index|lib\/routes)\.js$/ },
    handler: (code) =>
      code.replace(/__dirname, ('\.\.', 'static'|'\.\/static)/, (_match, path) =>
        path.endsWith("'static'") ? `__dirname, '${SWAGGER_UI_IN_DIST}'` : `__dirname, './${SWAGGER_UI_IN_DIST}`,
      ),
  },
  generateBundle() {
    for (const name of readdirSync(SWAGGER_UI))
      this.emitFile({
        type: 'asset',
        fileName: `api/${SWAGGER_UI_IN_DIST}/${name}`,
        source: readFileSync(`${SWAGGER_UI}/${name}`),
      })
  },
}

/** src/imds-api/model/vat-number.ts loads stdnum with the first VAT number: here from a bundle of its own, dist/api/vat.js. */
const vatNumbers = replaced('imds-api/model/vat-number.ts', "('stdnum')", "('./vat.js')")

/** Adds the licenses of the libraries of which the bundle has code. */
const licenses = (name) => ({
  name: 'licenses',
  generateBundle(_options, bundle) {
    const modules = Object.values(bundle).flatMap((chunk) =>
      chunk.type === 'chunk' ? Object.entries(chunk.modules) : [],
    )
    const files = modules.filter(([, { renderedLength }]) => renderedLength > 0).map(([file]) => file)
    this.emitFile({ type: 'asset', fileName: `${name}/licenses.txt`, source: formatLicenses(files) })
  },
})

/** Bundles one program, or the library, into dist/NAME/. */
const build = (name, input, { external = UNUSED, plugins = [], ...output }) => ({
  input: Object.fromEntries(Object.entries(input).map(([file, module]) => [`${name}/${file}`, module])),
  platform: 'node',
  external,
  transform: { define: { __dirname: 'import.meta.dirname' } }, // packages that are CommonJS have it
  plugins: [ascii, builtins, deferred, script, licenses(name), ...plugins],
  output: {
    dir: 'dist',
    format: 'esm',
    comments: { jsdoc: false },
    chunkFileNames: `${name}/[name]-[hash].js`,
    ...output,
  },
})

/** What the daemon loads before it serves guests: all of it in one file. Not main.ts, which the other files would have to wait for. */
const START = { name: 'start', tags: ['$initial'], test: (id) => !id.endsWith('/imdsd/main.ts') }

/** Each program is bundled separately, because a start takes longer with each file that it loads. */
const config = defineConfig([
  build(
    'main',
    { program: 'src/imdsd/main.ts' },
    { cleanDir: true, codeSplitting: { groups: [START] }, plugins: [entries, filesForPublishers, manual] },
  ),
  build('library', { index: 'src/library.ts' }, {}),
  build('imdsctl', { program: 'src/imdsctl/main.ts' }, {}),
  build(
    'api',
    { program: 'src/imds-api/main.ts', vat: 'node_modules/stdnum/lib/esm/index.js' },
    { external: OUTSIDE_OF_API, plugins: [swaggerUi, vatNumbers] },
  ),
])

export { config as default }
