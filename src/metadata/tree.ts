/**
 * The metadata tree of one instance: every path and its content.
 *
 * A tree is built once, from a record, its user-data and the catalogue, and does not change: a listing and the leaves
 * that it names come from the same object (contract B4). Listings are made from the nodes, so every listed path has
 * content (B3). A leaf is visible in a version and all later ones, a directory from the version of its first child.
 *
 * Content is ready to be sent, in bytes (content.ts).
 */
import { CATEGORIES, type Provider } from './categories.ts'
import { buildContent, textContent, type Content } from './content.ts'
import { IDENTITY_LEAVES, SignedDocument, type DocumentSigner } from './identity-document.ts'
import type { Instance } from './instance.ts'
import { VERSIONS, visibleFrom } from './versions.ts'

/** A text becomes content at its first request, because a guest asks for few of its paths. */
interface Source {
  content: Content | string
}
/**
 * `earlier`: for the versions before a change of format. `prepare`: makes the content, which cannot be read before;
 * undefined: it is made.
 */
interface Leaf extends Source {
  readonly kind: 'leaf'
  readonly from: number
  readonly earlier?: (Source & { readonly before: number }) | undefined
  readonly prepare?: () => Promise<void> | undefined
}
/**
 * `names` and `children` have the same order. They and `listings` are not maps, one for each directory, which would
 * take half of the memory of a tree.
 */
interface Directory {
  readonly kind: 'directory'
  from: number
  names: string[]
  children: Node[]
  /** What a listing shows after a name. */
  readonly suffix: (position: number, child: Node) => string
  /** By version; made when first asked for. */
  listings: Map<number, Content> | undefined
}
type Node = Leaf | Directory

/** The nodes of an instance, by path below a version. Opaque: use `resolve`. */
export type Tree = ReadonlyMap<string, Node>

const IDENTITY = 'dynamic/instance-identity'

/** In `public-keys/`, a name of digits is the position of a key, also if a user has this id (C2). */
const IS_POSITION = /^\d+$/

/** The content of `/`: the versions, one per line (contract A1). */
export const VERSION_LIST: Content = textContent(VERSIONS.join('\n'))

/**
 * Builds the tree of an instance. `userData` is undefined if the instance has none. Sealed user-data is left out.
 */
export function buildTree(instance: Instance, userData: Uint8Array | undefined, provider: Provider): Tree {
  const nodes = new Map<string, Node>()
  if (provider.signer !== undefined) addIdentity(nodes, instance, provider.signer)
  for (const { pattern, since, entries } of CATEGORIES) {
    for (const { parameters, value, earlier } of entries({ instance, provider })) {
      const from = visibleFrom(since)
      const former = earlier && { before: visibleFrom(earlier.since), content: earlier.value }
      add(nodes, fill(pattern, parameters), { kind: 'leaf', from, content: value, earlier: former }, instance)
    }
  }
  if (userData !== undefined && instance.sealedAt === undefined) {
    const content = buildContent(userData, 'application/octet-stream', instance.userData?.sha256)
    add(nodes, 'user-data', { kind: 'leaf', from: 0, content }, instance)
  }
  instance.publicKeys.forEach(({ user }, index) => {
    if (!IS_POSITION.test(user)) alias(nodes, `meta-data/public-keys/${user}`, `meta-data/public-keys/${String(index)}`)
  })
  for (const node of nodes.values()) if (node.kind === 'directory') trim(node)
  return nodes
}

/** Gives back what V8 has reserved for more children: room for 17 after the first one. */
function trim(directory: Directory): void {
  directory.names = directory.names.slice()
  directory.children = directory.children.slice()
}

function addIdentity(nodes: Map<string, Node>, instance: Instance, signer: DocumentSigner): void {
  const document = new SignedDocument(instance, signer)
  for (const name of IDENTITY_LEAVES) {
    const leaf: Leaf = {
      kind: 'leaf',
      from: visibleFrom('2009-04-04'),
      get content() {
        return document.content(name)
      },
      prepare: () => document.prepare(),
    }
    add(nodes, `${IDENTITY}/${name}`, leaf, instance)
  }
}

/** Makes the content below `dynamic/`, which cannot be read before. Undefined: it is made, or there is none. */
export function prepareIdentity(tree: Tree): Promise<void> | undefined {
  const node = tree.get(`${IDENTITY}/document`)
  return node?.kind === 'leaf' ? node.prepare?.() : undefined
}

/** The content of a path (as `parseTarget` returns it) at a version's position; undefined if there is none. */
export function resolve(tree: Tree, version: number, path: string): Content | undefined {
  const node = tree.get(path)
  if (node === undefined || node.from > version) return undefined
  if (node.kind === 'directory') return listing(node, version)
  return contentAt(node, version)
}

function contentAt(leaf: Leaf, version: number): Content {
  const source = leaf.earlier !== undefined && version < leaf.earlier.before ? leaf.earlier : leaf
  if (typeof source.content === 'string') source.content = textContent(source.content)
  return source.content
}

/**
 * A directory and everything below it as one JSON object (contract H2): names are keys, directories objects, leaves
 * strings. User-data is left out. Undefined if the path is no directory of the version.
 */
export function resolveSubtree(tree: Tree, version: number, path: string): Content | undefined {
  const node = tree.get(path)
  if (node?.kind !== 'directory' || node.from > version) return undefined
  return textContent(JSON.stringify(subtreeOf(node, version)), 'application/json')
}

function subtreeOf(directory: Directory, version: number): object {
  const entries = directory.children.flatMap((child, position) => {
    const name = directory.names[position]!
    if (child.from > version) return []
    if (child.kind === 'directory') return [[name, subtreeOf(child, version)]]
    const { body } = contentAt(child, version)
    return typeof body === 'string' ? [[name, Buffer.from(body, 'latin1').toString()]] : []
  })
  return Object.fromEntries(entries) as object
}

/** The paths under `meta-data/` that `after` lacks: a crawl in flight may still request them (contract B5). */
export function removedPaths(before: Tree, after: Tree): Tree {
  return new Map(before.entries().filter(([path]) => path.startsWith('meta-data/') && !after.has(path)))
}

/** Adds a leaf, and the directories above it. */
function add(nodes: Map<string, Node>, path: string, leaf: Leaf, instance: Instance): void {
  nodes.set(path, leaf)
  let [at, child, isNew]: [string, Node, boolean] = [path, leaf, true]
  while (at !== '') {
    const slash = at.lastIndexOf('/')
    const parentPath = slash === -1 ? '' : at.slice(0, slash)
    const known = nodes.get(parentPath) as Directory | undefined
    const parent = known ?? directory(suffixIn(parentPath, instance))
    if (known === undefined) nodes.set(parentPath, parent)
    if (isNew) {
      parent.names.push(at.slice(slash + 1))
      parent.children.push(child)
    }
    parent.from = Math.min(parent.from, leaf.from)
    ;[at, child, isNew] = [parentPath, parent, known === undefined]
  }
}

/**
 * What a listing shows after a name: a slash after a directory, except in the root of a version, and the user of a key,
 * as in `0=usr-x1y2z` (contract B1, C2).
 */
function suffixIn(path: string, { publicKeys }: Instance): Directory['suffix'] {
  if (path === 'meta-data/public-keys') return (position) => `=${publicKeys[position]!.user}`
  return path === '' ? noSuffix : slashOfDirectory
}

const noSuffix = () => ''
const slashOfDirectory: Directory['suffix'] = (_position, { kind }) => (kind === 'directory' ? '/' : '')

/** Adds a second, unlisted path for a directory and its leaves: the interface document names keys by user (C2). */
function alias(nodes: Map<string, Node>, path: string, target: string): void {
  const node = nodes.get(target) as Directory
  nodes.set(path, node)
  for (const [position, child] of node.children.entries()) nodes.set(`${path}/${node.names[position]!}`, child)
}

function listing(node: Directory, version: number): Content {
  let content = node.listings?.get(version)
  if (content === undefined) {
    const lines = node.children.flatMap((child, position) =>
      child.from <= version ? [node.names[position]! + node.suffix(position, child)] : [],
    )
    content = textContent(lines.join('\n'))
    ;(node.listings ??= new Map()).set(version, content)
  }
  return content
}

function directory(suffix: Directory['suffix']): Directory {
  return { kind: 'directory', from: Infinity, names: [], children: [], suffix, listings: undefined }
}

function fill(pattern: string, parameters: readonly string[]): string {
  let next = 0
  return parameters.length === 0 ? pattern : pattern.replace(/\{[^}]+\}/g, () => parameters[next++] ?? '')
}
