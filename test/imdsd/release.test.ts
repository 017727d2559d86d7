/**
 * `npm run release`, twice and in different directories, and what operators do with the result: a host that systemd boots
 * installs imds by apt, with the commands of the README, and by rpm.
 */
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { anInstance } from '../support/fixtures/instance.ts'
import { bootBareHost, LINK, withoutSystemd } from '../support/netns/booted-host.ts'
import { without } from '../support/packages.ts'
import { prepareBuildah } from '../support/programs/buildah.ts'
import { until } from '../support/programs/daemon.ts'
import { must } from '../support/programs/processes.ts'
import { serveDirectory } from '../support/programs/web-server.ts'
import { shortDirectory } from '../support/test-directory.ts'
import { executed, ROOT } from '../tools/documents.ts'

t.setTimeout(1_200_000) // as under `npm test`: two releases take more than two minutes of CPU
const KEY = 'imds test <imds@example.com>'
const URL_OF_EXAMPLE = 'https://packages.example.com'
const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { version: string }

/** Runs a command in a copy of the repository at $1, to which nothing is written back. */
const IN_A_COPY = `
mkdir -p "$1" /mnt
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work
mount -t overlay -o lowerdir="$0",upperdir=/mnt/upper,workdir=/mnt/work overlay "$1"
cd "$1"
eval "$2"
`

/** Makes a key and two releases of this commit in directories with different paths. */
async function makeReleases(t: Test) {
  const { directory, env } = await prepareBuildah(t)
  const keyring = join(directory, 'keyring')
  mkdirSync(keyring, { mode: 0o700 })
  const { HOME, NODE_EXTRA_CA_CERTS } = process.env // npm's configuration
  const withKey = {
    ...env,
    HOME,
    NODE_EXTRA_CA_CERTS,
    GNUPGHOME: keyring,
    NODE_IMAGE: 'localhost/base',
    DPKG_DEB_COMPRESSOR_LEVEL: '0',
  }
  t.teardown(() => must(['gpgconf', '--kill', 'all'], { env: withKey }))
  const makeKey = ['gpg', '--batch', '--quiet', '--passphrase', '', '--quick-generate-key']
  for (const name of [KEY, 'an intruder']) await must([...makeKey, name, 'ed25519', 'sign', 'never'], { env: withKey })
  const release = async (copy: string) => {
    const out = join(directory, 'www', copy)
    const command = executed('docs/versions.md', 'release').replace('npm ci\n', '').replace('/srv/www/imds', '"$OUT"')
    await must(
      [
        'unshare',
        '--mount',
        'bash',
        '-euc',
        IN_A_COPY,
        ROOT,
        join(directory, copy),
        command.replace('KEY ', '"$KEY" '),
      ],
      { env: { ...withKey, OUT: out, KEY } },
    )
    return out
  }
  const [one, other] = [await release('clone'), await release('another/path/of/imds')]
  return { one, other, env: withKey, served: join(directory, 'www') }
}

function filesIn(directory: string): string[] {
  return readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => join(parentPath, name).slice(directory.length + 1))
    .sort()
}

const skip =
  withoutSystemd() ||
  without(
    'buildah',
    'rpmbuild',
    'strip',
    'aarch64-linux-gnu-strip',
    'x86_64-linux-gnu-strip',
    'gpg',
    'dpkg-scanpackages',
  )

t.test('a release can be repeated, served and installed', { skip }, async (t) => {
  const { one, other, env, served } = await makeReleases(t)
  const here = (await must(['dpkg', '--print-architecture'])).toString().trim()

  await t.test('two releases of a commit have the same bytes, except for the signatures', (t) => {
    const files = filesIn(one)
    const node = process.versions.node
    t.same(files, [
      'SHA256SUMS',
      'SHA256SUMS.asc',
      'deb/InRelease',
      'deb/Packages',
      'deb/Packages.gz',
      'deb/Release',
      'deb/Release.gpg',
      `deb/imds-api_${version}_all.deb`,
      `deb/imds-node_${node}_amd64.deb`,
      `deb/imds-node_${node}_arm64.deb`,
      `deb/imds_${version}_all.deb`,
      `deb/imdsctl_${version}_all.deb`,
      `images/imds-api-${version}-${here}.tar`,
      `images/imdsd-${version}-${here}.tar`,
      'imds.asc',
      `npm/imds-${version}.tgz`,
      `rpm/imds-${version}-1.aarch64.rpm`,
      `rpm/imds-${version}-1.x86_64.rpm`,
    ])
    t.same(filesIn(other), files)
    const unsigned = files.filter((file) => !/InRelease|Release\.gpg|SUMS\.asc/.test(file))
    for (const file of unsigned) t.ok(readFileSync(join(one, file)).equals(readFileSync(join(other, file))), file)
    t.end()
  })

  await t.test('the checksums and their signature are right', async (t) => {
    const asAnother = { ...env, GNUPGHOME: shortDirectory(t) }
    await must(['sh', '-euc', `cd "$0"\n${executed('docs/versions.md', 'verify')}`, one], { env: asAnother })
    await must(['gpgconf', '--kill', 'all'], { env: asAnother })
    t.equal((readFileSync(join(one, 'SHA256SUMS'), 'utf8').match(/\n/g) ?? []).length, filesIn(one).length - 4)
  })

  await t.test('each package has an SBOM that names what it contains', async (t) => {
    const unpacked = shortDirectory(t)
    const node = `deb/imds-node_${process.versions.node}`
    await must(['tar', '-xzf', join(one, `npm/imds-${version}.tgz`), '-C', unpacked])
    for (const name of ['imds', 'imdsctl', 'imds-api'])
      await must(['dpkg-deb', '--extract', join(one, `deb/${name}_${version}_all.deb`), unpacked])
    await must(['dpkg-deb', '--extract', join(one, `${node}_arm64.deb`), unpacked])
    for (const [path, ...names] of [
      ['package/dist/main/sbom.cdx.json', 'fastify', 'ioredis', 'prom-client'],
      ['package/dist/api/sbom.cdx.json', 'kysely', 'pg', 'swagger-ui'],
      ['usr/lib/imds/dist/main/sbom.cdx.json', 'fastify', 'ioredis', 'prom-client'],
      ['usr/lib/imdsctl/dist/imdsctl/sbom.cdx.json', 'commander', 'ioredis'],
      ['usr/lib/imds-api/dist/api/sbom.cdx.json', 'kysely', 'pg', 'swagger-ui'],
      ['usr/share/doc/imds-node/sbom.cdx.json', 'openssl', 'v8'],
    ] as const) {
      const { metadata, components } = JSON.parse(readFileSync(join(unpacked, path), 'utf8')) as {
        metadata: { component: { name: string } }
        components: { name: string; purl: string }[]
      }
      t.equal(metadata.component.name, path.includes('node') ? 'node' : 'imds', path)
      const found = components.map(({ name }) => name)
      for (const name of names) t.ok(found.includes(name), `${path}: ${name}`)
      t.notOk(found.includes('tap'), `${path} has no library of the tests`)
    }
    t.match(
      (await must(['file', '--brief', join(unpacked, 'usr/lib/imds-node/node')])).toString(),
      /ELF 64-bit.*ARM aarch64.*, stripped/,
    )
  })

  const host = await bootBareHost(t, [LINK])
  const url = `${await serveDirectory(t, host, served)}/clone`
  // Debian's repositories cannot be reached, and the index of man pages takes long
  await host.shell(
    'rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/* /var/lib/man-db/auto-update',
  )
  const [guest] = host.guests
  const id = async () => (await guest!.ask({ path: '/latest/meta-data/instance-id' })).body.toString()
  const configure = `cat > /etc/imds/imds.env <<'EOF'\nIMDS_STORE=file:/srv/imds\nEOF\ninstall -d -o imds -g imds /srv/imds`
  const bash = (code: string) => host.shell(`set -e; export DEBIAN_FRONTEND=noninteractive; (${code}\n) 2>&1`)

  await t.test('the commands of the README install imds by apt, and a guest is served', async (t) => {
    const commands = executed('README.md', 'install')
    await bash(commands.replaceAll(URL_OF_EXAMPLE, url).replace(/^editor .*$/m, configure))
    await host.shell('imdsctl put -', JSON.stringify(anInstance()))
    await until(async () => (await id()) === 'srv-abcde', 'the instance')
    t.match(await host.shell('imdsd --version'), version)
    t.match(await host.shell('apt-cache policy imds'), url)
    t.match(await host.shell('apt-cache show imds-api imds-node'), /^Package: imds-api$[^]*^Package: imds-node$/m)
  })

  await t.test('apt refuses what was changed after the release', async (t) => {
    const deb = `deb/imds_${version}_all.deb`
    const packages = readFileSync(join(one, 'deb/Packages'), 'utf8')
    const byIntruder = ['--batch', '--yes', '--quiet', '--local-user', 'an intruder', '--clear-sign', '--output']
    for (const [what, tamper, message] of [
      [
        'a package',
        (copy: string) => {
          const bytes = readFileSync(join(one, deb))
          bytes[bytes.length - 100]! ^= 1
          writeFileSync(join(copy, deb), bytes)
        },
        'Hash Sum mismatch',
      ],
      [
        'the index',
        (copy: string) => {
          writeFileSync(join(copy, 'deb/Packages'), packages.replace('iproute2, ', ''))
          writeFileSync(join(copy, 'deb/Packages.gz'), 'not gzip')
        },
        /Hash Sum mismatch|unexpected size/,
      ],
      [
        'the signature',
        (copy: string) => must(['gpg', ...byIntruder, join(copy, 'deb/InRelease'), join(copy, 'deb/Release')], { env }),
        'NO_PUBKEY',
      ],
    ] as const) {
      const copy = join(served, 'copy')
      cpSync(join(one, 'deb'), join(copy, 'deb'), { recursive: true })
      await tamper(copy)
      const apt = `apt-get -o Dir::State::lists=/tmp/apt/lists -o Dir::Cache::archives=/tmp/apt/archives -o Dir::Etc::sourcelist=/tmp/apt/list`
      const commands = `
        rm -rf /tmp/apt; mkdir -p /tmp/apt/lists/partial /tmp/apt/archives/partial
        sed s/clone/copy/ /etc/apt/sources.list.d/imds.list > /tmp/apt/list
        ${apt} -o Dir::Etc::sourceparts=- -o APT::Update::Error-Mode=any update
        ${apt} -o Dir::Etc::sourceparts=- install -y --reinstall imds`
        .trim()
        .replaceAll(/\n +/g, ' && ')
      const output = await host.shell(`(${commands}) 2>&1 && echo installed || true`)
      t.match(output, message, what)
      t.notMatch(output, /^installed$/m, what)
      rmSync(copy, { recursive: true })
    }
    t.equal(await id(), 'srv-abcde', 'the daemon serves on')
  })

  await t.test('the RPM is installed, serves a guest, and is removed', { skip: here !== 'amd64' }, async (t) => {
    await bash('apt-get purge -y imds imds-node; rm -rf /etc/imds')
    await bash(`curl -fsSO ${url}/rpm/imds-${version}-1.x86_64.rpm --output-dir /tmp`)
    const rpm = '--dbpath /tmp/rpm' // Debian's own packages are not in it
    await bash(`rpm ${rpm} --install --nodeps /tmp/imds-*.rpm`)
    await bash(`${configure}\nsystemctl restart imds`)
    await until(async () => (await id()) === 'srv-abcde', 'the instance')
    t.equal(await host.shell('systemctl is-enabled imds-address imds.socket imds'), 'enabled\n'.repeat(3))
    const changed = await bash(`rpm ${rpm} --verify --nodeps imds || true`)
    t.match(changed, /^\S+ +c \/etc\/imds\/imds\.env\n$/, 'only the configuration differs')
    await bash(`rpm ${rpm} --erase imds`)
    t.equal(await host.shell('ss --no-header --listening --tcp --udp | grep -v :8000 || true'), '')
  })
})
