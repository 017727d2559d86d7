/** Bytes in their largest unit: `512.0 KiB`, `1.5 GiB`, `76 GiB`. */
export function formatBytes(bytes: number): string {
  const [unit, name] = bytes < 2 ** 20 ? [2 ** 10, 'KiB'] : bytes < 2 ** 30 ? [2 ** 20, 'MiB'] : [2 ** 30, 'GiB']
  return `${(bytes / unit).toFixed(bytes < unit * 10 ? 1 : 0)} ${name}`
}

/** `1 instance`, `2 instances`. */
export function formatCount(count: number, singular: string, plural = `${singular}s`): string {
  return `${count} ${count === 1 ? singular : plural}`
}

/** At most `most` names: `a, b, 3 more`. */
export function formatSome(names: readonly string[], most: number): string {
  const more = names.length - most
  return [...names.slice(0, most), ...(more > 0 ? [`${more} more`] : [])].join(', ')
}
