/**
 * Which path does a request target name?
 *
 * Real clients double slashes, add or drop the last one, send absolute URLs and escape what needs none; the tree knows one path
 * for each thing (contract A3; docs/ec2.md#urls). Splitting comes before decoding, so an escaped slash separates nothing.
 * The path decides what is said, never who is asking: an absolute target's host is dropped.
 */
import { LATEST, versionPosition } from './versions.ts'

/** The closed set of what a target can be, as metrics and log lines name it. */
export const ROUTES = ['/', '/{version}', '/{version}/meta-data', '/{version}/user-data', '/openstack/latest/user_data', '/latest/api/token', '/{version}/api/token', 'unknown'] as const
/** One of ROUTES. */
export type Route = typeof ROUTES[number]

/** A parsed target: the position of its version, and the path below it without slashes at its ends (empty for the version's root). */
export interface Target { readonly route: Route, readonly version: number, readonly path: string }

const UNKNOWN: Target = Object.freeze({ route: 'unknown', version: LATEST, path: '' })
const ROOT: Target = Object.freeze({ route: '/', version: LATEST, path: '' })
const OPENSTACK_USER_DATA: Target = Object.freeze({ route: '/openstack/latest/user_data', version: LATEST, path: 'user-data' })

const TOKEN: Target = Object.freeze({ route: '/latest/api/token', version: LATEST, path: 'api/token' })

const NEEDS_WORK = /^[^/]|[%?#]|\/\/|\/$/

/** Parses a request target as it stood in the request line. `malformed`: an escape that does not decode to UTF-8 (400). */
export function parseTarget(target: string): Target | 'malformed' {
  const path = NEEDS_WORK.test(target) ? normalise(target) : target.slice(1)
  if (path === undefined) return 'malformed'
  if (path === '') return ROOT
  if (path === 'openstack/latest/user_data') return OPENSTACK_USER_DATA
  if (path === 'latest/api/token') return TOKEN
  const slash = path.indexOf('/')
  const version = versionPosition(slash === -1 ? path : path.slice(0, slash))
  if (version === undefined) return UNKNOWN
  const below = slash === -1 ? '' : path.slice(slash + 1)
  return { route: routeOf(below), version, path: below }
}

function routeOf(path: string): Route {
  if (path === '') return '/{version}'
  if (path === 'user-data') return '/{version}/user-data'
  if (path === 'api/token') return '/{version}/api/token'
  return path === 'meta-data' || path.startsWith('meta-data/') ? '/{version}/meta-data' : 'unknown'
}

/** The segments of a target, decoded, joined by single slashes; undefined when an escape is malformed. */
function normalise(target: string): string | undefined {
  const path = target.replace(/^[A-Za-z][A-Za-z0-9+.-]*:\/\/[^/?#]*/, '').replace(/[?#].*$/s, '')
  try {
    return path.split('/').filter((segment) => segment !== '').map(decodeSegment).join('/')
  } catch {
    return undefined
  }
}

/** A segment that hides a slash stays encoded: no name of the tree holds one. */
function decodeSegment(segment: string): string {
  const decoded = decodeURIComponent(segment)
  return decoded.includes('/') ? segment : decoded
}
