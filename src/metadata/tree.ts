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

/**
 * `earlier`: the content for the versions before a change of format. `prepare`: makes the content, which cannot be read
 * before; undefined: it is made.
 */
interface Leaf {
  readonly kind: 'leaf'
  readonly from: number
  readonly content: Content
  readonly earlier?: { readonly before: number; readonly content: Content }
  readonly prepare?: () => Promise<void> | undefined
}
interface Directory {
  readonly kind: 'directory'
  from: number
  readonly children: Map<string, { readonly listedAs: string; readonly node: Node }>
  readonly listings: Map<number, Content>
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
      const former = earlier && { earlier: { before: visibleFrom(earlier.since), content: textContent(earlier.value) } }
      const leaf: Leaf = { kind: 'leaf', from, content: textContent(value), ...former }
      add(nodes, fill(pattern, parameters), leaf, instance)
    }
  }
  if (userData !== undefined && instance.sealedAt === undefined) {
    const content = buildContent(userData, 'application/octet-stream', instance.userData?.sha256)
    add(nodes, 'user-data', { kind: 'leaf', from: 0, content }, instance)
  }
  instance.publicKeys.forEach(({ user }, index) => {
    if (!IS_POSITION.test(user)) alias(nodes, `meta-data/public-keys/${user}`, `meta-data/public-keys/${String(index)}`)
  })
  return nodes
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

function contentAt({ content, earlier }: Leaf, version: number): Content {
  return earlier !== undefined && version < earlier.before ? earlier.content : content
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
  const entries = [...directory.children]
    .filter(([, { node }]) => node.from <= version)
    .flatMap(([name, { node }]) => {
      if (node.kind === 'directory') return [[name, subtreeOf(node, version)]]
      const { body } = contentAt(node, version)
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
  let child: Node = leaf
  for (let slash = path.lastIndexOf('/'), at = path; ; slash = at.lastIndexOf('/')) {
    const name = at.slice(slash + 1)
    const parentPath = slash === -1 ? '' : at.slice(0, slash)
    let parent = nodes.get(parentPath)
    if (parent === undefined) nodes.set(parentPath, (parent = directory()))
    const { children } = parent as Directory
    if (!children.has(name)) children.set(name, { listedAs: listedAs(parentPath, name, child, instance), node: child })
    ;(parent as Directory).from = Math.min((parent as Directory).from, leaf.from)
    if (parentPath === '') return
    child = parent
    at = parentPath
  }
}

/**
 * How a listing shows a name: a directory ends in a slash, except in the root of a version; a key is `0=usr-x1y2z`
 * (contract B1, C2).
 */
function listedAs(parentPath: string, name: string, node: Node, { publicKeys }: Instance): string {
  if (parentPath === 'meta-data/public-keys') return `${name}=${publicKeys[Number(name)]?.user ?? ''}`
  return parentPath !== '' && node.kind === 'directory' ? `${name}/` : name
}

/** Adds a second, unlisted path for a directory and its leaves: the interface document names keys by user (C2). */
function alias(nodes: Map<string, Node>, path: string, target: string): void {
  const node = nodes.get(target) as Directory
  nodes.set(path, node)
  for (const [name, child] of node.children) nodes.set(`${path}/${name}`, child.node)
}

function listing(node: Directory, version: number): Content {
  let content = node.listings.get(version)
  if (content === undefined) {
    const names = [...node.children.values()]
      .filter(({ node: { from } }) => from <= version)
      .map((child) => child.listedAs)
    node.listings.set(version, (content = textContent(names.join('\n'))))
  }
  return content
}

function directory(): Directory {
  return { kind: 'directory', from: Infinity, children: new Map(), listings: new Map() }
}

function fill(pattern: string, parameters: readonly string[]): string {
  let next = 0
  return parameters.length === 0 ? pattern : pattern.replace(/\{[^}]+\}/g, () => parameters[next++] ?? '')
}
