/**
 * Software bills of materials (CycloneDX). `npm run build` writes one beside the licenses of each bundle, with the
 * libraries that are named there. They have no serial number, and no time but SOURCE_DATE_EPOCH, so that two builds have
 * the same bytes.
 */
import { execFileSync } from 'node:child_process'
import { globSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { SEPARATOR } from './licenses/licenses.ts'

const ROOT = new URL('../', import.meta.url).pathname

interface Component {
  readonly 'bom-ref'?: string
  readonly type: 'application' | 'library'
  readonly name: string
  readonly version?: string
  readonly purl: string
}

/** The SBOM of imds-node: what Node.js says of the libraries that its executable contains. */
export function nodeSbom(): string {
  const component = ([name, version]: readonly [string, string | undefined]): Component => ({
    type: 'library',
    name,
    version: version!,
    purl: `pkg:generic/${name}@${version!}`,
  })
  const { node, modules, napi, ...libraries } = process.versions
  return format({ ...component(['node', node]), type: 'application' }, Object.entries(libraries).map(component))
}

function format(component: Component, components: readonly Component[]): string {
  const seconds = process.env['SOURCE_DATE_EPOCH']
  const bom = {
    bomFormat: 'CycloneDX',
    specVersion: '1.5',
    version: 1,
    metadata: { ...(seconds && { timestamp: new Date(Number(seconds) * 1000).toISOString() }), component },
    components,
  }
  return `${JSON.stringify(bom, null, 2)}\n`
}

/** Writes the SBOM of each bundle in dist/. */
function writeSboms(): void {
  const { metadata, components } = JSON.parse(
    execFileSync('npm', ['sbom', '--sbom-format', 'cyclonedx', '--package-lock-only'], { cwd: ROOT, encoding: 'utf8' }),
  ) as { metadata: { component: Component }; components: Component[] }
  const byName = new Map(
    components.map((component) => [
      `${component.name} ${component.version!}`,
      { ...component, properties: undefined }, // they call it a development dependency: its code is in the bundle
    ]),
  )
  for (const file of globSync(join(ROOT, 'dist/*/licenses.txt'))) {
    const names = readFileSync(file, 'utf8')
      .split(SEPARATOR)
      .map((part) => part.slice(0, part.indexOf('\n')))
    writeFileSync(
      join(dirname(file), 'sbom.cdx.json'),
      format(
        { ...metadata.component, name: 'imds' }, // npm takes the name of the directory
        names.map((name) => byName.get(name) ?? { type: 'library', name, purl: `pkg:npm/${name}` }),
      ),
    )
  }
}

if (import.meta.main) writeSboms()
