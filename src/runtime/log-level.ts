/** The values of IMDS_LOG_LEVEL, the quietest first. log.ts says what each shows. */
export const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug'] as const
export type LogLevel = (typeof LOG_LEVELS)[number]
