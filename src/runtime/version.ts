import manifest from '../../package.json' with { type: 'json' }

/** The version of this package, as `--version` and the metric `imds_build_info` show it. */
export const VERSION = manifest.version
