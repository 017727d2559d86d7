/**
 * Parses the target of a request into its canonical form: a version, and a path of the tree (contract A3;
 * docs/contract.md#notes-on-ec2).
 *
 * Real clients double slashes, add or omit the last one, send absolute URLs, and escape characters that need no escape.
 * The target is split before it is decoded, so an escaped slash does not separate segments. The host of an absolute URL
 * is ignored, and so is the query, except for the parameters of contract A7, H1, H2 and H4.
 */
import { LRUCache } from 'lru-cache'
import { AUDIENCE } from './identifiers.ts'
import type { Parsed } from './parsed.ts'
import { LATEST, NO_VERSION, versionPosition } from './versions.ts'

/** The kinds of targets, as metrics and log lines name them: a closed set. */
export const ROUTES = [
  '/',
  '/{version}',
  '/{version}/meta-data',
  '/{version}/user-data',
  '/openstack/latest/user_data',
  '/openstack',
  '/nocloud',
  '/{version}/dynamic',
  '/latest/dynamic/instance-identity/token',
  '/latest/api/token',
  '/{version}/api/token',
  '/latest/reports',
  'unknown',
] as const
export type Route = (typeof ROUTES)[number]

/** What targets ask for, as `imdsctl explain` names it: a closed set, finer than ROUTES. `meta-data/` is its listing. */
export const TOPICS = [
  'versions',
  'token',
  'meta-data/',
  'instance-id',
  'hostname',
  'public-keys',
  'network',
  'placement',
  'tags',
  'other metadata',
  'user-data',
  'identity',
  'identity token',
  'reports',
  'other',
] as const
export type Topic = (typeof TOPICS)[number]

/**
 * A parsed target: the position of its version, and the path below it without slashes at its ends (empty for the root
 * of the version). In the trees beside EC2's: NO_VERSION, and the whole path.
 */
export interface Target {
  readonly route: Route
  readonly topic: Topic
  readonly version: number
  readonly path: string
  /** Undefined: the target has no parameter with a meaning. */
  readonly query?: Query
  /** The audience of an identity token (H4). Undefined: the target has none, more than one, or a malformed one. */
  readonly audience?: string
}

/** The parameters of a target that have a meaning. */
export interface Query {
  /** The whole subtree is asked for (H2). */
  readonly recursive: boolean
  /** A change is waited for (H1). `lastEtag`: without quotes; undefined: a change from now on. */
  readonly wait: { readonly lastEtag: string | undefined; readonly timeoutMs: number } | undefined
}

/** The default and the limit of `timeout_sec`. */
const TIMEOUT_SECONDS = 300
const MAX_TIMEOUT_SECONDS = 600

type ParsedTarget = Parsed<Target, string>

const MALFORMED: ParsedTarget = Object.freeze({ ok: false, faults: ['has an escape that does not decode to UTF-8'] })
const BAD_TIMEOUT: ParsedTarget = Object.freeze({
  ok: false,
  faults: [`has a timeout_sec that is not a whole number from 1 to ${MAX_TIMEOUT_SECONDS}`],
})
const UNKNOWN = latest('unknown', 'other', '')
const ROOT = latest('/', 'versions', '')
const OPENSTACK_USER_DATA = latest('/openstack/latest/user_data', 'user-data', 'user-data')
const TOKEN = latest('/latest/api/token', 'token', 'api/token')
const IDENTITY_TOKEN = latest(
  '/latest/dynamic/instance-identity/token',
  'identity token',
  'dynamic/instance-identity/token',
)

const IS_AUDIENCE = new RegExp(AUDIENCE)

const NOT_CANONICAL = /^[^/]|[%?#]|\/\/|\/$/

/** A quick test for a query that may have a parameter with a meaning. */
const HAS_QUERY = /[?&](?:wait_for_change|recursive)=true/

/** Parses the target of a request line. Faults: an escape that does not decode to UTF-8, and a `timeout_sec`. */
export function parseTarget(target: string): ParsedTarget {
  const parsed = parsePath(target)
  if (parsed === IDENTITY_TOKEN) return withAudience(IDENTITY_TOKEN, queryOf(target))
  if (!parsed.ok || !HAS_QUERY.test(target)) return parsed
  const query = parseQuery(queryOf(target))
  return query === undefined ? BAD_TIMEOUT : { ok: true, value: { ...parsed.value, query } }
}

/** Whether the query of a target asks that an error has no body (contract A7). */
export function isBodyless(target: string): boolean {
  return /[?&]error_body=false(?:[&#]|$)/.test(target)
}

function queryOf(target: string): string {
  return target.replace(/^[^?]*\??/, '').replace(/#.*$/s, '')
}

function withAudience(parsed: ParsedTarget, query: string): ParsedTarget {
  const audience = parameterOf(query, 'audience')
  const isRepeated = /(?:^|&)audience=.*&audience=/s.test(query)
  return parsed.ok && audience !== undefined && !isRepeated && IS_AUDIENCE.test(audience)
    ? { ok: true, value: { ...parsed.value, audience } }
    : parsed
}

/** Undefined: `timeout_sec` of a request that waits is out of range. */
function parseQuery(text: string): Query | undefined {
  const recursive = parameterOf(text, 'recursive') === 'true'
  if (parameterOf(text, 'wait_for_change') !== 'true') return { recursive, wait: undefined }
  const timeout = parameterOf(text, 'timeout_sec') ?? String(TIMEOUT_SECONDS)
  const seconds = /^\d{1,3}$/.test(timeout) ? Number(timeout) : 0
  if (seconds < 1 || seconds > MAX_TIMEOUT_SECONDS) return undefined
  const lastEtag = parameterOf(text, 'last_etag')?.replace(/^"(.*)"$/, '$1')
  return { recursive, wait: { lastEtag, timeoutMs: seconds * 1000 } }
}

/**
 * The first parameter of a name; undefined if there is none, or no value. It alone is parsed: to parse thousands of
 * parameters that have no meaning would cost more than the request.
 */
function parameterOf(query: string, name: string): string | undefined {
  const text = `&${query}`
  const start = text.indexOf(`&${name}=`)
  if (start === -1) return undefined
  const end = text.indexOf('&', start + 1)
  return new URLSearchParams(text.slice(start + 1, end === -1 ? undefined : end)).get(name) ?? undefined
}

function parsePath(target: string): ParsedTarget {
  const path = NOT_CANONICAL.test(target) ? normalise(target) : target.slice(1)
  if (path === undefined) return MALFORMED
  if (path === '') return ROOT
  if (path === 'openstack/latest/user_data') return OPENSTACK_USER_DATA
  if (path === 'latest/api/token') return TOKEN
  if (path === 'latest/dynamic/instance-identity/token') return IDENTITY_TOKEN
  if (path.startsWith('latest/reports/')) {
    const below = path.slice('latest/'.length)
    return { ok: true, value: { route: '/latest/reports', topic: 'reports', version: LATEST, path: below } }
  }
  const slash = path.indexOf('/')
  const first = slash === -1 ? path : path.slice(0, slash)
  const version = versionPosition(first)
  if (version === undefined) return first === 'nocloud' || first === 'openstack' ? seedTarget(first, path) : UNKNOWN
  const below = slash === -1 ? '' : path.slice(slash + 1)
  const route = routeOf(below)
  return { ok: true, value: { route, topic: topicOf(route, below), version, path: below } }
}

/** The topics of files in the trees beside EC2's; listings and other files have `other`. */
const TOPIC_OF_FILE: ReadonlyMap<string, Topic> = new Map<string, Topic>([
  ['meta-data', 'meta-data/'],
  ['meta_data.json', 'meta-data/'],
  ['network-config', 'network'],
  ['network_data.json', 'network'],
  ['user-data', 'user-data'],
  ['user_data', 'user-data'],
  ['vendor-data', 'other metadata'],
  ['vendor_data.json', 'other metadata'],
  ['vendor_data2.json', 'other metadata'],
])

function seedTarget(tree: 'nocloud' | 'openstack', path: string): ParsedTarget {
  const topic = TOPIC_OF_FILE.get(path.slice(path.lastIndexOf('/') + 1)) ?? 'other'
  return { ok: true, value: { route: `/${tree}`, topic, version: NO_VERSION, path } }
}

/** The most targets in a cache, and the length of the longest. */
const MAX_TARGETS = 1_024
const MAX_LENGTH = 256

/**
 * Parses targets and caches the results: guests request the same targets repeatedly, and V8 keeps the hash of a
 * cached path. Memory is bounded, whatever guests request.
 */
export class TargetCache {
  readonly #parsed = new LRUCache<string, ParsedTarget>({ max: MAX_TARGETS })

  parse(text: string): ParsedTarget {
    const known = this.#parsed.get(text)
    if (known !== undefined) return known
    const parsed = parseTarget(text)
    if (parsed.ok && isCached(parsed.value) && text.length <= MAX_LENGTH) this.#parsed.set(text, parsed)
    return parsed
  }
}

function isCached({ query, audience }: Target): boolean {
  return query === undefined && audience === undefined
}

function latest(route: Route, topic: Topic, path: string): ParsedTarget {
  return Object.freeze({ ok: true, value: Object.freeze({ route, topic, version: LATEST, path }) })
}

function routeOf(path: string): Route {
  if (path === '') return '/{version}'
  if (path === 'user-data') return '/{version}/user-data'
  if (path === 'api/token') return '/{version}/api/token'
  if (path === 'meta-data' || path.startsWith('meta-data/')) return '/{version}/meta-data'
  return path === 'dynamic' || path.startsWith('dynamic/') ? '/{version}/dynamic' : 'unknown'
}

/** The topics of names below `meta-data/`; other names have `other metadata`. */
const TOPIC_OF_NAME: ReadonlyMap<string, Topic> = new Map<string, Topic>([
  ['instance-id', 'instance-id'],
  ['hostname', 'hostname'],
  ['local-hostname', 'hostname'],
  ['public-hostname', 'hostname'],
  ['public-keys', 'public-keys'],
  ['network', 'network'],
  ['mac', 'network'],
  ['local-ipv4', 'network'],
  ['public-ipv4', 'network'],
  ['placement', 'placement'],
  ['tags', 'tags'],
])

function topicOf(route: Route, path: string): Topic {
  switch (route) {
    case '/{version}':
      return 'versions'
    case '/{version}/user-data':
      return 'user-data'
    case '/{version}/api/token':
      return 'token'
    case '/{version}/dynamic':
      return 'identity'
    case '/{version}/meta-data': {
      const [, name] = path.split('/', 2)
      return name === undefined ? 'meta-data/' : (TOPIC_OF_NAME.get(name) ?? 'other metadata')
    }
    default:
      return 'other'
  }
}

/**
 * The path of a target, decoded, with single slashes between its segments; undefined if an escape is malformed. It is
 * decoded as a whole, since each of thousands of segments would cost as much. An escaped slash stays encoded: no name
 * of the tree has a slash.
 */
function normalise(target: string): string | undefined {
  const path = target.replace(/^[A-Za-z][A-Za-z0-9+.-]*:\/\/[^/?#]*/, '').replace(/[?#].*$/s, '')
  try {
    return decodeURIComponent(path.replace(/%2f/gi, '%252F'))
      .replace(/\/{2,}/g, '/')
      .replace(/^\/|\/$/g, '')
  } catch {
    return undefined
  }
}
