/** Events in the logs of both programs: what has happened, and is no condition of now. */
import type { Meaning } from './condition.ts'

export const EVENTS: readonly Meaning[] = [
  {
    code: 'variables-unknown',
    what: '`variables` are none of this version, and have no effect.',
    guests: 'nothing.',
    remedy: 'correct or delete them',
  },
  {
    code: 'start-failed',
    what: 'the program cannot start: `reason` or `err` says why. systemd starts it again.',
    guests: 'new connections wait in the socket of systemd, or are refused without it.',
    remedy: 'correct what the line names',
  },
  {
    code: 'unexpected-error',
    what: 'a defect has ended the program; systemd starts it again.',
    guests: 'nothing.',
    remedy: 'report `err` with the lines before it',
  },
  {
    code: 'request-failed',
    what: 'a defect: one request got 500.',
    guests: 'one error; most clients try again.',
    remedy: 'report `err`; if it began with an upgrade, go back',
  },
  {
    code: 'response-failed',
    what: 'a response could not be sent, and its connection was closed.',
    guests: 'one broken connection.',
    remedy: 'report `err` if it repeats',
  },
  {
    code: 'log-lines-lost',
    what: 'the reader of standard output did not keep up: `lines` lines are missing.',
    guests: 'nothing.',
    remedy: 'find out why journald is slow, most often its disk; end `IMDS_LOG_LEVEL=debug`',
  },
  {
    code: 'systemd-not-notified',
    what: '`systemd-notify` failed. systemd ends the program after the time of its watchdog.',
    guests: 'requests wait while it starts again.',
    remedy: "install systemd's programs, or correct `PATH` in the unit",
  },
]
