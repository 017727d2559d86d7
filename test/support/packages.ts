/** The programs of Debian that tests need. `npm test` installs those that are missing, if it runs as root. */
import { existsSync } from 'node:fs'
import { delimiter, join } from 'node:path'

/** The Debian package of each program, and its path if that is not on PATH. */
const PROGRAMS = {
  'redis-server': ['redis-server'],
  'redis-cli': ['redis-tools'],
  jq: ['jq'],
  'cloud-init': ['cloud-init'],
  ip: ['iproute2'],
  nft: ['nftables'],
  prometheus: ['prometheus'],
  promtool: ['prometheus'],
  'systemd-analyze': ['systemd'],
  'systemd-hwdb': ['udev'],
  curl: ['curl'],
  setpriv: ['util-linux'],
  ping: ['iputils-ping'],
  openssl: ['openssl'],
  script: ['bsdutils'],
  python3: ['python3'],
  strace: ['strace'],
  ignition: ['ignition', '/usr/lib/dracut/modules.d/30ignition/ignition'],
  postgres: ['postgresql-15', '/usr/lib/postgresql/15/bin/postgres'],
  'python3-requests-oauthlib': ['python3-requests-oauthlib', '/usr/lib/python3/dist-packages/requests_oauthlib'],
  'python3-libcloud': ['python3-libcloud', '/usr/lib/python3/dist-packages/libcloud'],
  'python3-authlib': ['python3-authlib', '/usr/lib/python3/dist-packages/authlib'],
  'python3-jwt': ['python3-jwt', '/usr/lib/python3/dist-packages/jwt'],
  'python3-cryptography': ['python3-cryptography', '/usr/lib/python3/dist-packages/cryptography'],
  oathtool: ['oathtool'],
  haproxy: ['haproxy'],
  chromium: ['chromium'],
  sshd: ['openssh-server'],
  strip: ['binutils'],
  'aarch64-linux-gnu-strip': ['binutils-aarch64-linux-gnu'],
  'x86_64-linux-gnu-strip': ['binutils-x86-64-linux-gnu'],
  'dpkg-scanpackages': ['dpkg-dev'],
  gpg: ['gnupg'],
  rpmbuild: ['rpm'],
  file: ['file'],
  groff: ['groff-base'],
  buildah: ['buildah'],
  lintian: ['lintian'],
  'ansible-playbook': ['ansible-core'],
  'ansible-lint': ['ansible-lint'],
} as const satisfies Record<string, readonly [debian: string, path?: string]>

/** A program, by its name in the table. */
export type Program = keyof typeof PROGRAMS

/** The packages of all programs that are missing here. */
export function missingPackages(): readonly string[] {
  const missing = (Object.keys(PROGRAMS) as Program[]).filter((program) => !isInstalled(program))
  return [...new Set(missing.map((program) => PROGRAMS[program][0]))]
}

/** Why a test that needs some programs is skipped; false: all are here. */
export function without(...programs: readonly Program[]): string | false {
  const missing = programs.find((program) => !isInstalled(program))
  return missing !== undefined && `${missing} is missing: Debian has it in the package ${PROGRAMS[missing][0]}`
}

function isInstalled(program: Program): boolean {
  const [, path]: readonly [string, string?] = PROGRAMS[program]
  if (path !== undefined) return existsSync(path)
  const folders = [...(process.env['PATH'] ?? '').split(delimiter), '/usr/sbin', '/sbin']
  return folders.some((folder) => existsSync(join(folder, program)))
}
