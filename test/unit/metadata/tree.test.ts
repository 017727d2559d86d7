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
