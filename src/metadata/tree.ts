/**
 * The metadata tree of one instance: every path and its content.
 *
 * A tree is built once, from a record, its user-data and the catalogue, and does not change: a listing and the leaves
 * that it names come from the same object (contract B4). Listings are made from the nodes, so every listed path has
 * content (B3). A leaf is visible in a version and all later ones, a directory from the version of its first child.
 *
 * Content is ready to be sent, in bytes (content.ts).
 *
 * A hypervisor has a tree for each guest that has asked, so nodes are small: a path is found by its names, which most
 * instances share.
 */
import { CATEGORIES, type Provider } from './categories.ts'
import { buildContent, textContent, type Content } from './content.ts'
import { IdentityDocument, type DocumentSigner } from './identity-document.ts'
import { namedKeys, type Instance } from './instance.ts'
import { VERSIONS, visibleFrom } from './versions.ts'

/** A text becomes content at its first request, because a guest asks for few of its paths. */
interface LeafText {
  content: Content | string
}
/**
 * `earlier`: for the versions before a change of format. `prepare`: makes the content, which cannot be read before;
 * undefined: it is made.
 */
interface Leaf extends LeafText {
  readonly from: number
  readonly earlier?: LeafText & { readonly before: number }
  readonly prepare?: () => Promise<void> | undefined
}
/**
 * `names` and `children` have the same order. Those at the end, from `listed` on, are in no listing. They and `listings`
 * are not maps, one for each directory, which would take half of the memory of a tree.
 */
class Directory {
  from = Infinity
  names: string[] = []
  children: Node[] = []
  listed = 0
  /** What a listing shows after a name. */
  readonly suffix: (position: number, child: Node) => string
  /** By version; made when first asked for. */
  listings: Map<number, Content> | undefined = undefined

  constructor(suffix: Directory['suffix']) {
    this.suffix = suffix
  }

  child(name: string): Node | undefined {
    const position = this.names.indexOf(name)
    return position === -1 ? undefined : this.children[position]
  }

  add(name: string, child: Node): void {
    this.names.push(name)
    this.children.push(child)
  }
}
type Node = Leaf | Directory

/** The nodes of an instance below a version, and how many paths they have. Opaque: use `resolve`. */
export interface Tree {
  readonly root: Directory
  readonly size: number
}
/** Nodes by path. Opaque: use `resolveRemoved`. */
export type RemovedPaths = ReadonlyMap<string, Node>

/** The rows of the catalogue, with the names of their paths, which all trees share. */
const ROWS = CATEGORIES.map(({ pattern, since, entries }) => ({
  names: pattern.split('/'),
  from: visibleFrom(since),
  entries,
}))

const IDENTITY = ['dynamic', 'instance-identity']

/** In `public-keys/`, a name of digits is the position of a key, also if a user has this id (C2). */
const IS_POSITION = /^\d+$/

/** The content of `/`: the versions, one per line (contract A1). */
export const VERSION_LIST: Content = textContent(VERSIONS.join('\n'))

/** Builds the tree of an instance. `userData` is undefined if the instance has none. Sealed user-data is left out. */
export function buildTree(instance: Instance, userData: Uint8Array | undefined, provider: Provider): Tree {
  const root = new Directory(noSuffix)
  addIdentity(root, instance, provider.signer)
  for (const { names, from, entries } of ROWS) {
    for (const { parameters, value, earlier } of entries({ instance, provider })) {
      const leaf: Leaf =
        earlier === undefined
          ? { from, content: value }
          : { from, content: value, earlier: { before: visibleFrom(earlier.since), content: earlier.value } }
      add(root, fill(names, parameters), leaf, instance)
    }
  }
  if (userData !== undefined && instance.sealedAt === undefined) {
    const content = buildContent(userData, 'application/octet-stream', instance.userData?.sha256)
    add(root, ['user-data'], { from: 0, content }, instance)
  }
  addUsers(root, instance)
  return { root, size: finish(root) }
}

/** Adds an unlisted path for the keys of each user: the interface document names keys by user (C2). */
function addUsers(root: Directory, { publicKeys }: Instance): void {
  const keys = nodeAt(root, 'meta-data/public-keys')
  if (!(keys instanceof Directory)) return
  let index = 0
  for (const { user, key, moreKeys } of publicKeys) {
    const first = keys.child(String(index))!
    if (!IS_POSITION.test(user))
      keys.add(user, moreKeys.length === 0 ? first : keysOfUser(first.from, [key, ...moreKeys]))
    index += 1 + moreKeys.length
  }
}

function keysOfUser(from: number, keys: readonly string[]): Directory {
  const directory = new Directory(noSuffix)
  directory.add('openssh-key', { from, content: `${keys.join('\n')}\n` })
  return Object.assign(directory, { from, listed: 1 })
}

/**
 * Gives back what V8 has reserved for more children, which is room for 17 after the first one, and returns the number of
 * paths.
 */
function finish(directory: Directory): number {
  directory.names = directory.names.slice()
  directory.children = directory.children.slice()
  return directory.children.reduce((paths, child) => paths + (child instanceof Directory ? finish(child) : 1), 1)
}

function addIdentity(root: Directory, instance: Instance, signer: DocumentSigner | undefined): void {
  const document = new IdentityDocument(instance, signer)
  for (const name of document.leaves) {
    const leaf: Leaf = {
      from: visibleFrom('2009-04-04'),
      get content() {
        return document.content(name)
      },
      prepare: () => document.prepare(),
    }
    add(root, [...IDENTITY, name], leaf, instance)
  }
}

/** Makes the signatures below `dynamic/`, which cannot be read before. Undefined: they are made, or there are none. */
export function prepareIdentity(tree: Tree): Promise<void> | undefined {
  const node = nodeAt(tree.root, [...IDENTITY, 'document'].join('/'))
  return node === undefined || node instanceof Directory ? undefined : node.prepare?.()
}

/** The content of a path (as `parseTarget` returns it) at a version's position; undefined if there is none. */
export function resolve(tree: Tree, version: number, path: string): Content | undefined {
  return contentOf(nodeAt(tree.root, path), version)
}

/** The same among paths that were removed. */
export function resolveRemoved(removed: RemovedPaths, version: number, path: string): Content | undefined {
  return contentOf(removed.get(path), version)
}

function contentOf(node: Node | undefined, version: number): Content | undefined {
  if (node === undefined || node.from > version) return undefined
  return node instanceof Directory ? listing(node, version) : contentAt(node, version)
}

function nodeAt(root: Directory, path: string): Node | undefined {
  if (path === '') return root
  let node: Node | undefined = root
  for (let [start, end] = [0, 0]; end < path.length; start = end + 1) {
    if (!(node instanceof Directory)) return undefined
    const slash = path.indexOf('/', start)
    end = slash === -1 ? path.length : slash
    node = node.child(path.slice(start, end))
  }
  return node
}

function contentAt(leaf: Leaf, version: number): Content {
  const text = leaf.earlier !== undefined && version < leaf.earlier.before ? leaf.earlier : leaf
  if (typeof text.content === 'string') text.content = textContent(text.content)
  return text.content
}

/**
 * A directory and everything below it as one JSON object (contract H2): names are keys, directories objects, leaves
 * strings. User-data is left out. Undefined if the path is no directory of the version.
 */
export function resolveSubtree(tree: Tree, version: number, path: string): Content | undefined {
  const node = nodeAt(tree.root, path)
  if (!(node instanceof Directory) || node.from > version) return undefined
  return textContent(JSON.stringify(subtreeOf(node, version)), 'application/json')
}

function subtreeOf(directory: Directory, version: number): object {
  const entries = listed(directory).flatMap((child, position) => {
    const name = directory.names[position]!
    if (child.from > version) return []
    if (child instanceof Directory) return [[name, subtreeOf(child, version)]]
    const { body } = contentAt(child, version)
    return typeof body === 'string' ? [[name, Buffer.from(body, 'latin1').toString()]] : []
  })
  return Object.fromEntries(entries) as object
}

/** The paths under `meta-data/` that `after` lacks: a crawl in flight may still request them (contract B5). */
export function removedPaths(before: Tree, after: Tree): RemovedPaths {
  return new Map(
    nodesBelow('meta-data', before.root.child('meta-data')).filter(([path]) => nodeAt(after.root, path) === undefined),
  )
}

/** The same without tags, which are the only paths that an option shows. */
export function withoutTags(removed: RemovedPaths): RemovedPaths {
  return new Map([...removed].filter(([path]) => !/^meta-data\/tags(?:\/|$)/.test(path)))
}

/** A node with its path, and what is below it. */
export function nodesBelow(path: string, node: Node | undefined): (readonly [string, Node])[] {
  if (node === undefined) return []
  if (!(node instanceof Directory)) return [[path, node]]
  const prefix = path === '' ? '' : `${path}/`
  return [[path, node], ...node.children.flatMap((child, i) => nodesBelow(prefix + node.names[i]!, child))]
}

/** Adds a leaf, and the directories above it. */
function add(root: Directory, names: readonly string[], leaf: Leaf, instance: Instance): void {
  let directory = root
  for (const [depth, name] of names.entries()) {
    directory.from = Math.min(directory.from, leaf.from)
    let child = depth === names.length - 1 ? leaf : directory.child(name)
    if (child === undefined || child === leaf) {
      child ??= new Directory(suffixIn(names.slice(0, depth + 1), instance))
      directory.add(name, child)
      directory.listed++
    }
    if (child instanceof Directory) directory = child
  }
}

/**
 * What a listing shows after a name: a slash after a directory, except in the root of a version, and the name of a key,
 * as in `0=usr-x1y2z` (contract B1, C2).
 */
function suffixIn(names: readonly string[], instance: Instance): Directory['suffix'] {
  if (names.join('/') !== 'meta-data/public-keys') return slashOfDirectory
  const ofKeys = namedKeys(instance).map(({ name }) => name)
  return (position) => `=${ofKeys[position]!}`
}

const noSuffix = () => ''
const slashOfDirectory: Directory['suffix'] = (_position, child) => (child instanceof Directory ? '/' : '')

function listed({ children, listed: count }: Directory): readonly Node[] {
  return count === children.length ? children : children.slice(0, count)
}

function listing(node: Directory, version: number): Content {
  let content = node.listings?.get(version)
  if (content === undefined) {
    const lines = listed(node).flatMap((child, position) =>
      child.from <= version ? [node.names[position]! + node.suffix(position, child)] : [],
    )
    content = textContent(lines.join('\n'))
    ;(node.listings ??= new Map()).set(version, content)
  }
  return content
}

function fill(names: readonly string[], parameters: readonly string[]): readonly string[] {
  let next = 0
  return parameters.length === 0
    ? names
    : names.map((name) => name.replace(/\{[^}]+\}/, () => parameters[next++] ?? ''))
}
