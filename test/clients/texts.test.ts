/**
 * Every text of a record through every form in which a guest reads it, with the parsers of cloud-init (Python's JSON
 * and PyYAML): what `parse` accepts arrives unchanged.
 */
import { spawnSync } from 'node:child_process'
import t from 'tap'
import { parse as parseYaml } from 'yaml'
import { formatIdentityDocument } from '../../src/metadata/identity-document.ts'
import { namedKeys, type Instance } from '../../src/metadata/instance.ts'
import { parse } from '../../src/metadata/record.ts'
import { InstanceSchema } from '../../src/metadata/schema.ts'
import { buildSeeds } from '../../src/metadata/seeds.ts'
import { buildTree, resolve } from '../../src/metadata/tree.ts'
import { VERSIONS } from '../../src/metadata/versions.ts'
import { aFullInstance } from '../support/fixtures/instance.ts'
import { ODD_TEXTS } from '../support/fixtures/odd-texts.ts'
import { must } from '../support/programs/processes.ts'

const PYTHON = '/usr/bin/python3'
const skip =
  spawnSync(PYTHON, ['-c', 'import cloudinit']).status !== 0 && 'cloud-init is missing: `npm test` installs it'

/** Reads all forms of records as cloud-init does, each text from each form that has it. Fails on texts that are no UTF-8. */
const READ = `
import base64, json, sys
from cloudinit.sources import normalize_pubkey_data
from cloudinit.sources.helpers.ec2 import MetadataLeafDecoder
from cloudinit.util import load_json, load_yaml

def read(forms):
    forms = {name: base64.b64decode(body) for name, body in forms.items()}
    leaf = lambda name: MetadataLeafDecoder()(name, forms[name])
    lines = lambda name: leaf(name) if isinstance(leaf(name), list) else [leaf(name)]
    seed = load_yaml(forms['nocloud/meta-data'], default={})
    openstack = load_json(forms['openstack/latest/meta_data.json'])
    document = json.loads(forms['document'])
    return {
        'id': [seed.get('instance-id'), openstack['uuid'], document['instanceId'], leaf('instance-id')],
        'fqdn': [seed.get('local-hostname'), openstack['hostname'], leaf('local-hostname')],
        'account': [openstack['project_id'], document['accountId']],
        'zone': [openstack['availability_zone'], document['availabilityZone'], leaf('placement/availability-zone')],
        'region': [document['region'], leaf('placement/region')],
        'serverType': [document['instanceType'], leaf('instance-type')],
        'image': [document['imageId'], leaf('ami-id')],
        'keys': [
            normalize_pubkey_data(seed.get('public-keys')),
            [key['data'] for key in openstack['keys']],
            list(openstack['public_keys'].values()),
            [key for i in '01' for key in normalize_pubkey_data(leaf(f'public-keys/{i}/openssh-key')) if key],
        ],
        'groups': [lines('security-groups')],
        'tags': [openstack['meta']],
        'tag': [forms['tags/instance/Name'].decode()],
        'descriptions': [[event['Description'] for event in json.loads(forms['events/maintenance/scheduled'])]],
        'vendorData': [
            forms['nocloud/vendor-data'].decode(),
            load_json(forms['openstack/latest/vendor_data.json'])['cloud-init'],
        ],
        'interfaces': [
            list(load_yaml(forms['nocloud/network-config'])['ethernets']),
            [link['id'] for link in load_json(forms['openstack/latest/network_data.json'])['links']],
        ],
    }

answer = [read(forms) for forms in json.load(sys.stdin)]
sys.stdout.buffer.write(json.dumps(answer, ensure_ascii=False).encode())
`

/** What a guest should read, by the names of READ. */
function textsOf(instance: Instance): Record<string, unknown> {
  const { id, fqdn, account, zone, region, serverType, image, tags, vendorData } = instance
  return {
    ...{ id, fqdn, account, region, image, tags, vendorData },
    zone: zone.handle,
    serverType: serverType.handle,
    keys: namedKeys(instance).map(({ key }) => key),
    groups: instance.serverGroups.map(({ name }) => name),
    tag: tags['Name'],
    descriptions: instance.events.map(({ description }) => description),
    interfaces: instance.interfaces.map((nic) => nic.id),
  }
}

const LEAVES = [
  ...['ami-id', 'events/maintenance/scheduled', 'instance-id', 'instance-type', 'local-hostname', 'security-groups'],
  ...['placement/availability-zone', 'placement/region', 'tags/instance/Name'],
  ...['public-keys/0/openssh-key', 'public-keys/1/openssh-key'],
]

/** The bodies of the responses, as text with one character per byte. */
function formsOf(instance: Instance): ReadonlyMap<string, string> {
  const tree = buildTree(instance, undefined, {})
  return new Map([
    ...[...buildSeeds(instance, undefined, new Uint8Array(32))].flatMap(([name, { body }]) =>
      typeof body === 'string' ? [[name, body] as const] : [],
    ),
    ...LEAVES.map((name) => [name, resolve(tree, VERSIONS.length - 1, `meta-data/${name}`)!.body as string] as const),
    ['document', Buffer.from(formatIdentityDocument(instance)).toString('latin1')],
  ])
}

const TIME = '2026-11-20T15:04:05Z'
const [FIRST] = aFullInstance()['interfaces'] as object[]
/** A record with every text of the schema: one entry in each list and map. */
const RECORD = aFullInstance({
  incarnation: 'k3x9',
  architecture: 'x86_64',
  launchTime: TIME,
  interfaces: [
    { ...FIRST, network: 'default', ipv4Gateway: '10.0.0.1', ipv6Gateway: 'fe80::1', nameservers: ['10.0.0.53'] },
  ],
  serverGroups: [{ id: 'grp-sda44', name: 'default' }],
  publicKeys: [{ user: 'usr-xl7gd', key: 'ssh-ed25519 AAAA ada', moreKeys: ['ssh-ed25519 AAAA laptop'] }],
  tags: { Name: 'web-1' },
  blockDevices: { ami: 'sda' },
  options: { instanceMetadataTags: 'enabled', openstack: 'enabled' },
  userData: { size: 0, sha256: '0'.repeat(64) },
  vendorData: '#cloud-config\n',
  events: [
    { id: 'evt-1', code: 'system-reboot', state: 'active', notBefore: TIME, notAfter: TIME, description: 'Kernel.' },
  ],
  sealedAt: TIME,
})

/** The places of the texts of a value. Each entry of a list or map is `*`. */
function placesOf(value: unknown, place: string): string[] {
  if (typeof value === 'string') return [place]
  if (Array.isArray(value)) return value.flatMap((entry) => placesOf(entry, `${place}/*`))
  const isMap = /\/(tags|blockDevices)$/.test(place)
  return Object.entries(value ?? {}).flatMap(([name, part]) => placesOf(part, `${place}/${isMap ? '*' : name}`))
}

interface Schema {
  readonly type?: string
  readonly enum?: unknown
  readonly properties?: Readonly<Record<string, Schema>>
  readonly patternProperties?: Readonly<Record<string, Schema>>
  readonly items?: Schema
}

function placesOfSchema(schema: Schema, place: string): string[] {
  if (schema.type === 'string') return schema.enum === undefined ? [place] : []
  const parts = [
    ...Object.entries(schema.properties ?? {}),
    ...Object.values(schema.patternProperties ?? {}).map((part) => ['*', part] as const),
    ...(schema.items === undefined ? [] : [['*', schema.items] as const]),
  ]
  return parts.flatMap(([name, part]) => placesOfSchema(part, `${place}/${name}`))
}

/** Copies of a value in which one text is changed, with the place of that. */
function* changes(value: unknown, place: string, change: (text: string) => string): Generator<[string, unknown]> {
  if (typeof value === 'string') yield [place, change(value)]
  if (typeof value !== 'object' || value === null) return
  for (const [name, part] of Object.entries(value)) {
    const isEntry = Array.isArray(value) || /\/(tags|blockDevices)$/.test(place)
    for (const [at, changed] of changes(part, `${place}/${isEntry ? '*' : name}`, change))
      yield [at, Array.isArray(value) ? value.with(Number(name), changed) : { ...value, [name]: changed }]
  }
  if (place.endsWith('/tags')) yield [`${place} key`, { ...value, [change('key')]: 'x' }]
}

t.test('every text of the schema is in the record of this test', (t) => {
  const places = new Set(placesOf(RECORD, ''))
  t.strictSame(
    placesOfSchema(InstanceSchema as Schema, '').filter((place) => !places.has(place)),
    [],
  )
  t.end()
})

t.test('a text that a record may have arrives unchanged, in every form', { skip }, async (t) => {
  const instances: Instance[] = []
  const accepted = new Map<string, Set<string>>()
  for (const odd of ODD_TEXTS) {
    const inserted = [
      (text: string) => odd + text,
      (text: string) => text.slice(0, -1) + odd + text.slice(-1),
      (text: string) => text + odd,
    ]
    for (const change of inserted)
      for (const [place, record] of changes(RECORD, '', change)) {
        const parsed = parse(record)
        if (!parsed.ok) continue
        accepted.set(place, (accepted.get(place) ?? new Set()).add(odd))
        instances.push(parsed.value)
      }
  }
  const FREE = [
    '/events/*/description',
    '/publicKeys/*/key',
    '/publicKeys/*/moreKeys/*',
    '/serverGroups/*/name',
    '/tags key',
    '/tags/*',
    '/vendorData',
  ]
  const isAscii = (text: string) => /^[\x20-\x7e]*$/.test(text)
  const free = [...accepted].flatMap(([place, odd]) => ([...odd].every(isAscii) ? [] : [place]))
  t.strictSame(free.sort(), FREE, 'other texts are visible ASCII')
  for (const place of FREE)
    for (const odd of ['é', '😀', '\ue000']) t.ok(accepted.get(place)!.has(odd), `${place} ${odd}`)

  const forms = instances.map(formsOf)
  const input = forms.map((bodies) =>
    Object.fromEntries([...bodies].map(([name, body]) => [name, Buffer.from(body, 'latin1').toString('base64')])),
  )
  const answer = JSON.parse((await must([PYTHON, '-c', READ], { input: JSON.stringify(input) })).toString()) as Record<
    string,
    unknown[]
  >[]
  const wrong = instances.flatMap((instance, i) => {
    const yaml = Buffer.from(forms[i]!.get('nocloud/meta-data')!, 'latin1').toString()
    const expected = textsOf(instance)
    return Object.entries({ ...answer[i]!, yaml: [parseYaml(yaml)] })
      .filter(([name, read]) => {
        const one = JSON.stringify(name === 'yaml' ? JSON.parse(yaml) : expected[name])
        return read.some((text) => JSON.stringify(text) !== one)
      })
      .map(([name, read]) => [name, expected[name], read])
  })
  t.strictSame(wrong.slice(0, 10), [], `${instances.length} records`)
})
