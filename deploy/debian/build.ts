/**
 * Builds the Debian packages from dist/ (`npm run package`): imds and imds-api, imdsctl with the documents and examples,
 * which both need, and imds-node, the Node.js of all three. Control files and maintainer scripts are beside this file. No
 * package owns a file in /etc: what operators edit is theirs.
 */
import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  cpSync,
  existsSync,
  globSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { SEPARATOR } from '../licenses/licenses.ts'
import { nodeSbom } from '../sbom.ts'

const ROOT = new URL('../../', import.meta.url).pathname
const NODE = join(ROOT, 'node_modules/node/bin/node')
/** The file in each directory of dist/ with the licenses of the libraries of which its programs have code. */
const LICENSES = 'licenses.txt'
const ARCHITECTURES: Readonly<Record<string, string>> = { x64: 'amd64', arm64: 'arm64' }
/** The program `strip` for each architecture, whatever that of this machine is. */
const STRIP: Readonly<Record<string, string>> = { amd64: 'x86_64-linux-gnu-strip', arm64: 'aarch64-linux-gnu-strip' }

/** The files of a package: path without the first slash -> content, or a file or directory to copy. */
type Files = Record<string, string | Buffer | { readonly copyOf: string }>

export interface Options {
  /** What `npm run build` made. */
  readonly dist: string
  readonly version: string
  /** Where the packages are written. */
  readonly directory: string
  /** Name and address, as in DEBFULLNAME and DEBEMAIL. */
  readonly maintainer: string
  /** Options of dpkg-deb. */
  readonly compression: readonly string[]
}

/** Builds imds, imdsctl and imds-api. Returns the files of the packages. */
export function buildImds({ dist, ...options }: Options): string[] {
  const ofDaemon = ['main', 'main.js']
  const ofApi = ['api', 'api.js']
  const others = readdirSync(dist).filter(
    (name) => ![...ofDaemon, ...ofApi, 'bin', 'types', 'man', 'completions'].includes(name),
  )
  const programs = (name: string, files: readonly string[]): Files => ({
    [`usr/lib/${name}/package.json`]: '{ "type": "module" }\n',
    ...Object.fromEntries(files.map((file) => [`usr/lib/${name}/dist/${file}`, { copyOf: join(dist, file) }])),
    [`usr/share/doc/${name}/copyright`]: copyright(
      globSync(`{${files.join()}}/${LICENSES}`, { cwd: dist }).map((file) => readFileSync(join(dist, file), 'utf8')),
    ),
  })
  return [
    build('imds', options, {
      ...programs('imds', ofDaemon),
      'usr/bin/imdsd': command('imds', 'main'),
      ...manualOf(dist, (name) => !/imdsctl|imds-api/.test(name)),
      ...unitsOf((name) => name !== 'imds-api.service'),
      'usr/lib/sysusers.d/imds.conf': usersOf('imds'),
      // The daemon does not start before these three are set: each hypervisor has its own.
      'usr/share/imds/imds.env': read('deploy/imds.env').replaceAll(/^(?=IMDS_(STORE|REGION|HYPERVISOR)=)/gm, '#'),
    }),
    build('imdsctl', options, {
      ...programs('imdsctl', others),
      'usr/bin/imdsctl': command('imdsctl', 'imdsctl'),
      ...manualOf(dist, (name) => name.includes('imdsctl')),
      'usr/share/doc/imds/docs': { copyOf: join(ROOT, 'docs') },
      'usr/share/doc/imds/README.md': { copyOf: join(ROOT, 'README.md') },
      'usr/share/doc/imds/CHANGELOG.md': { copyOf: join(ROOT, 'CHANGELOG.md') },
      ...Object.fromEntries(
        globSync(['{*,grafana/*}.{yml,yaml,conf,acl,cfg,json}', 'client/api.sh'], { cwd: join(ROOT, 'deploy') })
          .filter((file) => !file.endsWith('.test.yml') && file !== 'compose.yaml')
          .map((file) => [`usr/share/doc/imds/examples/${file}`, { copyOf: join(ROOT, 'deploy', file) }]),
      ),
    }),
    build('imds-api', options, {
      ...programs('imds-api', ofApi),
      'usr/bin/imds-api': command('imds-api', 'api'),
      ...manualOf(dist, (name) => name.includes('imds-api')),
      ...unitsOf((name) => name === 'imds-api.service'),
      'usr/lib/sysusers.d/imds-api.conf': usersOf('imds-api'),
      'usr/share/imds-api/imds-api.env': read('deploy/imds-api.env'),
    }),
  ]
}

/**
 * Builds imds-node of an architecture, by default this one, from the executable of Node.js. Its version is that of the
 * running Node.js. Returns the file of the package.
 */
export function buildNode(
  options: Omit<Options, 'dist' | 'version'>,
  architecture = ARCHITECTURES[process.arch]!,
  executable = NODE,
): string {
  const stripped = join(options.directory, 'node')
  execFileSync(STRIP[architecture]!, ['--strip-unneeded', '-o', stripped, executable])
  try {
    return build(
      'imds-node',
      { ...options, version: process.versions.node },
      {
        'usr/lib/imds-node/node': { copyOf: stripped },
        'usr/share/doc/imds-node/copyright': { copyOf: join(import.meta.dirname, 'imds-node/copyright') },
        'usr/share/doc/imds-node/sbom.cdx.json': nodeSbom(),
      },
      architecture,
    )
  } finally {
    rmSync(stripped)
  }
}

/**
 * The copyright file of a package with these licenses of libraries. Debian has the text of Apache's license in one
 * place, and wants no copy.
 */
function copyright(licenses: readonly string[]): string {
  const parts = licenses
    .flatMap((text) => text.split(SEPARATOR))
    .map((part) =>
      part.replace(
        /^ *Apache License\s+Version 2\.0, January 2004[^]*?END OF TERMS AND CONDITIONS$/m,
        'Apache License, version 2.0: on Debian systems, its text is in\n/usr/share/common-licenses/Apache-2.0.',
      ),
    )
  return [read('deploy/debian/copyright'), ...new Set(parts)].join(SEPARATOR)
}

/** A command that runs a program with imds-node. */
function command(name: string, program: string): string {
  return `#!/bin/sh\nexec /usr/lib/imds-node/node /usr/lib/${name}/dist/${program}.js "$@"\n`
}

/** Where Debian has the completion of bash. */
const COMPLETIONS = 'usr/share/bash-completion/completions'

/** The man pages and the completion of the programs whose name passes. */
function manualOf(dist: string, passes: (name: string) => boolean): Files {
  const filesIn = (folder: string) =>
    readdirSync(join(dist, folder))
      .filter(passes)
      .map((name) => [name, join(dist, folder, name)] as const)
  return Object.fromEntries([
    ...filesIn('man').map(([name, file]) => [
      `usr/share/man/man${name.at(-1)!}/${name}.gz`,
      gzipSync(readFileSync(file), { level: 9 }),
    ]),
    ...filesIn('completions/bash').map(([name, copyOf]) => [`${COMPLETIONS}/${name}`, { copyOf }]),
  ]) as Files
}

/** The units whose name passes. */
function unitsOf(passes: (name: string) => boolean): Files {
  const names = readdirSync(join(ROOT, 'systemd')).filter((name) => /\.(service|socket)$/.test(name) && passes(name))
  return Object.fromEntries(
    names.map((name) => [`usr/lib/systemd/system/${name}`, { copyOf: join(ROOT, 'systemd', name) }]),
  )
}

/** The line of imds.sysusers for one user. */
function usersOf(user: string): string {
  return read('systemd/imds.sysusers')
    .split(/(?<=\n)/)
    .filter((line) => line.startsWith(`u ${user} `))
    .join('')
}

/** Builds one package. What it needs beside `files` is in the directory of its name beside this file. */
function build(
  name: string,
  { version, directory, maintainer, compression }: Omit<Options, 'dist'>,
  files: Files,
  architecture = 'all',
): string {
  const here = join(import.meta.dirname, name)
  const root = mkdtempSync(join(tmpdir(), 'imds-package-'))
  try {
    const debianVersion = version.replace('-', '~') // a pre-release comes before the release
    const put = (path: string, content: Files[string]) => {
      const target = join(root, path)
      mkdirSync(dirname(target), { recursive: true })
      if (typeof content === 'object' && 'copyOf' in content)
        cpSync(content.copyOf, target, {
          recursive: true,
          verbatimSymlinks: true,
          filter: (file) => basename(file) !== LICENSES, // the copyright file has them
        })
      else writeFileSync(target, content)
    }
    for (const [path, content] of Object.entries(files)) put(path, content)
    put(`usr/share/doc/${name}/changelog.gz`, gzipSync(changelog(name, debianVersion, maintainer), { level: 9 }))
    if (existsSync(join(here, 'lintian-overrides')))
      put(`usr/share/lintian/overrides/${name}`, { copyOf: join(here, 'lintian-overrides') })
    setModes(root)
    // Without the directories, whose size depends on the file system.
    const size = globSync('**/*', { cwd: root })
      .map((path) => lstatSync(join(root, path)))
      .reduce((sum, stats) => sum + (stats.isFile() ? Math.ceil(stats.size / 1024) : 0), 0)
    const control = readFileSync(join(here, 'control'), 'utf8')
    const values: Readonly<Record<string, string>> = {
      VERSION: debianVersion,
      ARCHITECTURE: architecture,
      MAINTAINER: maintainer,
      SIZE: String(size),
    }
    put(
      'DEBIAN/control',
      control.replaceAll(/\b(VERSION|ARCHITECTURE|MAINTAINER|SIZE)\b/g, (key) => values[key]!),
    )
    for (const script of ['postinst', 'prerm', 'postrm', 'triggers'])
      if (existsSync(join(here, script))) {
        put(`DEBIAN/${script}`, { copyOf: join(here, script) })
        chmodSync(join(root, 'DEBIAN', script), script === 'triggers' ? 0o644 : 0o755)
      }
    const file = join(directory, `${name}_${debianVersion}_${architecture}.deb`)
    execFileSync('dpkg-deb', ['--root-owner-group', ...compression, '--build', root, file], {
      stdio: ['ignore', 'ignore', 'inherit'],
    })
    return file
  } finally {
    rmSync(root, { recursive: true })
  }
}

/** 0755 for directories and programs, 0644 for other files. */
function setModes(root: string): void {
  execFileSync('chmod', ['--recursive', 'u=rwX,go=rX', root])
  for (const program of globSync('usr/bin/*', { cwd: root })) chmodSync(join(root, program), 0o755)
}

/** What Debian wants to know of a version. What has changed is in CHANGELOG.md. */
function changelog(name: string, version: string, maintainer: string): string {
  const date = execFileSync(
    'date',
    ['--utc', '--rfc-email', '--date', `@${process.env['SOURCE_DATE_EPOCH'] ?? String(Math.floor(Date.now() / 1000))}`],
    { encoding: 'utf8' },
  )
  return `${name} (${version}) unstable; urgency=medium\n\n  * Version ${version}. /usr/share/doc/imds/CHANGELOG.md has the changes.\n\n -- ${maintainer}  ${date}`
}

function read(path: string): string {
  return readFileSync(join(ROOT, path), 'utf8')
}

if (import.meta.main) {
  const { DEBFULLNAME = 'imds maintainers', DEBEMAIL = 'imds@imds.invalid' } = process.env
  const options = { directory: '.', maintainer: `${DEBFULLNAME} <${DEBEMAIL}>`, compression: ['-Zxz'] }
  const { version } = JSON.parse(read('package.json')) as { version: string }
  // Each argument is another architecture and its Node.js: arm64=FILE
  const others = process.argv.slice(2).map((argument) => argument.split('=') as [string, string])
  const files = [
    ...buildImds({ ...options, dist: join(ROOT, 'dist'), version }),
    buildNode(options),
    ...others.map(([architecture, executable]) => buildNode(options, architecture, executable)),
  ]
  for (const file of files) {
    const size = execFileSync('dpkg-deb', ['--field', file, 'Installed-Size'], { encoding: 'utf8' }).trim()
    console.log(`${file}: ${(Number(size) / 1024).toFixed(1)} MiB installed`)
  }
}
