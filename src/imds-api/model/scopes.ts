/** The scopes of access tokens (docs/accounts.md#token-requests). */

/** Every scope, in the order in which responses name them. */
export const SCOPES = ['infrastructure', 'orbit'] as const
export type Scope = (typeof SCOPES)[number]

/** The scopes that the clients of each permissions group may have. */
export const SCOPES_OF_GROUP = {
  full: SCOPES,
  storage: ['orbit'],
} as const satisfies Readonly<Record<string, readonly Scope[]>>
export type PermissionsGroup = keyof typeof SCOPES_OF_GROUP

/**
 * The scopes that a token request asks for, among those that its client may have. Clients separate them by spaces (RFC
 * 6749, 3.3) or commas. Undefined: an unknown one, or none that is allowed.
 */
export function grantScopes(requested: string | undefined, allowed: readonly Scope[]): readonly Scope[] | undefined {
  const names = namesOf(requested)
  if (names.length === 0) return allowed
  if (!names.every((name) => (SCOPES as readonly string[]).includes(name))) return undefined
  const granted = allowed.filter((scope) => names.includes(scope))
  return granted.length > 0 ? granted : undefined
}

/**
 * The scopes that a refresh asks for: those of its token, or some of them. Undefined: it asks for another scope, which
 * is not allowed (RFC 6749, 6).
 */
export function narrowScopes(requested: string | undefined, granted: readonly string[]): readonly string[] | undefined {
  const names = namesOf(requested)
  if (names.length === 0) return granted
  return names.every((name) => granted.includes(name)) ? granted.filter((scope) => names.includes(scope)) : undefined
}

function namesOf(requested: string | undefined): readonly string[] {
  return (requested ?? '').split(/[\s,]+/).filter((name) => name !== '')
}

/** `infrastructure, orbit`: as `scope` and `X-Oauth-Scopes` have them. */
export function formatScopes(scopes: readonly string[]): string {
  return scopes.join(', ')
}
