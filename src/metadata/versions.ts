/**
 * The API versions: EC2's list, oldest first, with the alias `latest` last (contract A1; docs/contract.md#notes-on-ec2).
 *
 * A category has the date at which EC2 introduced it. Some of these dates are not versions, so a category is visible
 * from the first version at or after its date (contract A2). The rest of the tree uses positions in this list.
 */

/** Every version that can be the first path segment, oldest first. */
export const VERSIONS: readonly string[] = Object.freeze(
  `
  1.0 2007-01-19 2007-03-01 2007-08-29 2007-10-10 2007-12-15 2008-02-01 2008-09-01
  2009-04-04 2011-01-01 2011-05-01 2012-01-12 2014-02-25 2014-11-05 2015-10-20 2016-04-19
  2016-06-30 2016-09-02 2018-03-28 2018-08-17 2018-09-24 2019-10-01 2020-10-27 2021-01-03
  2021-03-23 2021-07-15 2022-07-09 2022-09-24 2024-04-11 latest
  `
    .trim()
    .split(/\s+/),
)

const POSITION: ReadonlyMap<string, number> = new Map(VERSIONS.map((version, position) => [version, position]))

/** The position of `latest`, in which everything is visible. */
export const LATEST = VERSIONS.length - 1

/** In place of a position, for paths of the trees beside EC2's (seeds.ts), which contain their version. */
export const NO_VERSION = -1

/** The position of a version, or undefined if there is no such version. */
export function versionPosition(version: string): number | undefined {
  return POSITION.get(version)
}

/** The position of the first listed version at or after `since` (`1.0`, or a date in ISO form). */
export function visibleFrom(since: string): number {
  return VERSIONS.findIndex((version) => version >= since) // compared as text: 1.0 is before every date, latest after
}
