/** Events in the logs of both programs: what has happened, and is no condition of now. */
import type { Meaning } from './condition.ts'

export const EVENTS: readonly Meaning[] = [
  {
    code: 'variables-unknown',
    what: 'variables begin with `IMDS_` and are none of this version. They have no effect.',
    guests: 'nothing, unless a setting is misspelt.',
    remedy: 'correct or delete those in `variables`',
  },
  {
    code: 'start-failed',
    what: 'the program cannot start; `reason` or `err` says why. systemd starts it again.',
    guests: 'new connections wait in the socket of systemd, or are refused without it; if it is imds-api, nothing.',
    remedy: 'correct what the line names',
  },
  {
    code: 'unexpected-error',
    what: 'a defect has ended the program; systemd starts it again.',
    guests: 'nothing, if the daemon starts again from its journal.',
    remedy: 'report `err` with the lines before it',
  },
  {
    code: 'request-failed',
    what: 'a defect: one request got 500.',
    guests: 'one error, if it is the daemon; most clients try again.',
    remedy: 'report `err`. If it began with an upgrade, go back to the previous version',
  },
  {
    code: 'response-failed',
    what: 'a response could not be sent to its end, and its connection was closed.',
    guests: 'one broken connection, if it is the daemon.',
    remedy: 'report `err` if it repeats',
  },
  {
    code: 'log-lines-lost',
    what: 'the reader of standard output, such as journald, did not keep up: `lines` lines of the log are missing.',
    guests: 'nothing.',
    remedy: 'find out why journald is slow, most often its disk, or end `IMDS_LOG_LEVEL=debug`',
  },
  {
    code: 'systemd-not-notified',
    what: '`systemd-notify` cannot be run, or failed. systemd then ends the program after the time of its watchdog.',
    guests: 'requests wait while the daemon is started again.',
    remedy: "install systemd's programs, or correct `PATH` in the unit",
  },
]
