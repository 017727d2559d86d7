import { describe, expect, test } from 'vitest'
import {
  buildTree,
  removedPaths,
  resolve,
  resolveRemoved,
  VERSION_LIST,
  type Tree,
} from '../../../src/metadata/tree.ts'
import { LATEST, VERSIONS } from '../../../src/metadata/versions.ts'
import { parsed } from '../../support/fixtures/guest-server.ts'
import { aFullInstance, anInstance } from '../../support/fixtures/instance.ts'

const treeOf = (
  record: Record<string, unknown>,
  { userData }: { userData: Buffer | undefined } = { userData: Buffer.from('x') },
) => buildTree(parsed(record), userData, { domain: 'example.com' })
const NO_USER_DATA = { userData: undefined }
const text = (tree: Tree, path: string, version = LATEST) => resolve(tree, version, path)?.body.toString()
const tree = treeOf(aFullInstance())
const MAC = 'meta-data/network/interfaces/macs/02:24:19:00:00:ee'

test('a body has one character per byte, and its headers the type and the exact length in bytes', () => {
  const tagged = treeOf(anInstance({ tags: { Name: 'é😀' }, options: { instanceMetadataTags: 'enabled' } }))
  const { body, headers } = resolve(tagged, LATEST, 'meta-data/tags/instance/Name')!
  expect(Buffer.from(body as string, 'latin1').toString()).toBe('é😀')
  expect(headers.slice(0, 4)).toEqual(['Content-Type', 'text/plain', 'Content-Length', '6'])
  expect(VERSION_LIST.body).toBe(VERSIONS.join('\n'))
})

test('C7: user-data is the given bytes, not a copy or a text of them', () => {
  const bytes = Buffer.from([0, 0xff, 0x1f, 0x8b])
  expect(resolve(treeOf(anInstance(), { userData: bytes }), 0, 'user-data')?.body).toBe(bytes)
  expect(resolve(treeOf(anInstance(), { userData: bytes }), 0, 'user-data')?.headers.slice(0, 4)).toEqual([
    'Content-Type',
    'application/octet-stream',
    'Content-Length',
    '4',
  ])
})

describe('there is no user-data', () => {
  test.each([
    ['of an instance without it', treeOf(anInstance(), NO_USER_DATA)],
    ['that is sealed', treeOf(anInstance({ sealedAt: '2026-11-20T15:04:05Z' }))],
  ])('%s', (_what, without) => {
    for (const version of VERSIONS.keys())
      expect([text(without, 'user-data', version) === undefined, text(without, '', version)]).toEqual([
        true,
        VERSIONS[version]! < '2009-04-04' ? 'meta-data' : 'dynamic\nmeta-data',
      ])
  })
})

test('a directory and its listing exist from the version of its first child', () => {
  const at = (version: string, path: string) => text(tree, path, VERSIONS.indexOf(version))
  expect(at('2007-12-15', 'meta-data/placement') === undefined).toBe(true)
  expect(at('2008-02-01', 'meta-data/placement')).toBe('availability-zone')
  expect(at('2020-10-27', 'meta-data/placement')).toBe('availability-zone\navailability-zone-id\nregion')
  expect(at('2007-12-15', 'meta-data')).not.toContain('placement/')
  expect(at('2008-02-01', 'meta-data')).toContain('placement/')
})

test('A2: a value whose format changed has the former one in earlier versions', () => {
  const before = VERSIONS.indexOf('2018-09-24') - 1
  expect([text(tree, `${MAC}/local-ipv4s`, before), text(tree, `${MAC}/local-ipv4s`, before + 1)]).toEqual([
    '10.0.0.2',
    '10.0.0.2\n10.0.9.2',
  ])
})

test('B4: the listing of a version is built once, and is the same object for every request', () => {
  expect(resolve(tree, LATEST, 'meta-data')).toBe(resolve(tree, LATEST, 'meta-data'))
  expect(resolve(tree, LATEST, 'meta-data')).not.toBe(resolve(tree, 0, 'meta-data'))
})

test.each([
  'meta-data/',
  '/meta-data',
  'meta-data//mac',
  'meta-data/mac/x',
  'Meta-data',
  'user-data/x',
  '..',
  'constructor',
])('a path that is not in the tree has no content: %s', (path) => {
  expect(resolve(tree, LATEST, path) === undefined).toBe(true)
})

test('C2: a key has a second path by its user, which no listing shows', () => {
  expect(text(tree, 'meta-data/public-keys/usr-bob00/openssh-key')).toBe(
    text(tree, 'meta-data/public-keys/1/openssh-key'),
  )
  expect(text(tree, 'meta-data/public-keys/usr-bob00')).toBe('openssh-key')
  expect(text(tree, 'meta-data/public-keys')).toBe('0=usr-xl7gd\n1=usr-bob00')
})

describe('B5: the removed paths', () => {
  const before = treeOf(anInstance())
  test('are those below meta-data/ that the later tree lacks, with their content', () => {
    const removed = removedPaths(before, treeOf(anInstance({ publicKeys: [] })))
    expect([...removed.keys()].sort()).toEqual([
      'meta-data/public-keys',
      'meta-data/public-keys/0',
      'meta-data/public-keys/0/openssh-key',
      'meta-data/public-keys/usr-xl7gd',
      'meta-data/public-keys/usr-xl7gd/openssh-key',
    ])
    expect(resolveRemoved(removed, LATEST, 'meta-data/public-keys/0/openssh-key')?.body).toBe(
      text(before, 'meta-data/public-keys/0/openssh-key'),
    )
  })
  test('never include user-data, nor a path whose value changed', () => {
    expect(removedPaths(before, treeOf(anInstance({ fqdn: 'new.example.com' }), NO_USER_DATA)).size).toBe(0)
  })
})
