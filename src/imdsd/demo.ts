/**
 * The demo of `imdsd --demo`: serves one made-up instance to 127.0.0.1, from a temporary directory that is deleted at
 * the end. Variables of the environment override the demo's defaults.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { openStore } from '../store/open.ts'

/**
 * A prepared demo: its environment and its temporary directory. `announce` prints commands to try, given the listeners
 * (`HOST:PORT`; `operator` undefined: it is not open); `clean` deletes the files.
 */
export interface Demo {
  readonly env: Readonly<Record<string, string | undefined>>
  readonly directory: string
  readonly announce: (guest: string, operator: string | undefined) => void
  readonly clean: () => void
}

const RECORD = {
  schema: 1,
  revision: 1,
  id: 'srv-demo1',
  fqdn: 'srv-demo1.gb1.example.com',
  account: 'acc-demo1',
  serverType: { id: 'typ-8fych', handle: '2gb.ssd' },
  image: 'img-4ltjf',
  zone: { id: 'zon-remk1', handle: 'gb1-a' },
  region: 'gb1',
  interfaces: [
    {
      id: 'int-demo1',
      macAddress: '02:24:19:00:00:01',
      ipv4Addresses: ['127.0.0.1/8'],
      cloudIps: [{ id: 'cip-demo1', publicIpv4: '198.51.100.7', fqdn: 'cip-198-51-100-7.gb1.example.com' }],
    },
  ],
  serverGroups: [{ id: 'grp-demo1', name: 'default' }],
  publicKeys: [
    {
      user: 'usr-demo1',
      key: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD ada@example',
    },
  ],
  tags: { Name: 'demo' },
  options: { instanceMetadataTags: 'enabled' },
  hypervisors: ['demo'],
}
const USER_DATA = '#cloud-config\nruncmd: [echo hello]\n'

/** Creates the store unless `env` names one, and adds the demo's defaults. */
export async function prepareDemo(env: Readonly<Record<string, string | undefined>>): Promise<Demo> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-demo-'))
  const url = `file:${join(directory, 'store')}`
  const embedded = (env['IMDS_STORE'] ?? '') === ''
  if (embedded) {
    const store = await openStore({ url })
    await store.put(RECORD, Buffer.from(USER_DATA))
    await store.close()
  }
  const set = Object.fromEntries(Object.entries(env).filter(([, value]) => value !== ''))
  return {
    env: {
      IMDS_LISTEN: '127.0.0.1:8169',
      IMDS_OPERATOR_LISTEN: '127.0.0.1:9169',
      IMDS_OPERATOR_SOCKET: join(directory, 'operator.sock'),
      IMDS_STATE_DIR: join(directory, 'state'),
      IMDS_STORE: url,
      ...set,
    },
    directory,
    clean: () => rmSync(directory, { recursive: true, force: true }),
    announce: (guest, operator) => {
      const base = `http://${guest}`
      const lines = [
        'imds answers guests. Try:',
        `  curl ${base}/latest/meta-data/`,
        `  curl ${base}/latest/meta-data/public-keys/0/openssh-key`,
        `  curl ${base}/latest/user-data`,
        ...(operator === undefined ? [] : [`  curl http://${operator}/metrics`]),
        ...(embedded ? [`  npm run -s imdsctl -- --store ${url} list`] : []),
      ]
      console.log(`\n${lines.join('\n')}\n`)
    },
  }
}
