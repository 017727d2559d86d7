/** What the alerts of deploy/alerts.yml mean. Those over imds_condition name a code of a condition. */
import type { Meaning } from './condition.ts'

const BY_CODE = 'imdsctl explain CODE, with the `code` of the alert, says what guests notice, and what to do'

export const ALERTS: readonly Meaning[] = [
  {
    code: 'ImdsFailure',
    what: 'a condition that guests or callers notice, or will after the next restart.',
    guests: 'its `code` says it.',
    remedy: BY_CODE,
  },
  {
    code: 'ImdsWarning',
    what: 'a condition for which an operator has to act this week.',
    guests: 'its `code` says it.',
    remedy: BY_CODE,
  },
  {
    code: 'ImdsDown',
    what: 'the daemon does not answer Prometheus.',
    guests: 'none of this hypervisor gets metadata, unless only Prometheus cannot reach the daemon.',
    remedy:
      'systemctl status imds; journalctl -u imds -n 50. Exit status 78: correct the variables that the journal names in /etc/imds/imds.env, and run systemctl restart imds. If the daemon runs, check the network, IMDS_OPERATOR_LISTEN and IMDS_OPERATOR_ALLOW',
  },
  {
    code: 'ImdsCrashLoop',
    what: 'the daemon ends and systemd starts it again, every few seconds.',
    guests: 'they are refused in between.',
    remedy:
      'journalctl -u imds -p crit has the reason; without a line, look for the out-of-memory killer in journalctl -k',
  },
  {
    code: 'ImdsRequestErrors',
    what: 'a defect of the daemon: more than one request in 100 gets 500.',
    guests: 'errors; most clients try again.',
    remedy:
      'report the lines of `journalctl -u imds | grep request-failed`. If it began with a new version, go back. If all lines name one instance, publishing it again may help',
  },
  {
    code: 'ImdsUnknownPeers',
    what: 'requests come from an address of no instance of this hypervisor.',
    guests:
      'one that was started before it was published, or whose record names another hypervisor or address, cannot finish booting.',
    remedy:
      '`journalctl -u imds | grep unknown-peer` has network and address, imdsctl list what is published. If no instance should have the address, check the anti-spoofing rules',
  },
  {
    code: 'ImdsConnectionsDropped',
    what: "a listener has reached the daemon's limit of open files.",
    guests: 'those that boot now may have to try several times.',
    remedy: 'as imdsctl explain descriptors says',
  },
  {
    code: 'ImdsApiDown',
    what: 'imds-api does not answer Prometheus.',
    guests: 'they are served; no server can be created or changed, unless only Prometheus cannot reach imds-api.',
    remedy:
      'on its host: systemctl status imds-api; journalctl -u imds-api -n 50. Exit status 78: correct the variables that the journal names in /etc/imds/imds-api.env. If imds-api runs, check the network and IMDS_API_OPERATOR_LISTEN',
  },
  {
    code: 'ImdsApiDatabaseBusy',
    what: 'all connections for requests are in use: requests are slow, and get 503 after 5 s.',
    guests: 'nothing.',
    remedy:
      'is the database slow (load, a full disk, old transactions: `select pid, now() - xact_start, wait_event_type, query from pg_stat_activity order by xact_start`)? Otherwise clients ask for more than this imds-api can do: start a second one on the same database',
  },
  {
    code: 'ImdsApiRequestsFail',
    what: 'more than one request in 20 fails though the database answers.',
    guests: 'nothing.',
    remedy:
      'journalctl -u imds-api -p warning has the reasons. Without a line, an account may send more than its share, or no hypervisor has room for new servers: the panel of requests shows the route',
  },
  {
    code: 'ImdsApiShedding',
    what: 'too many requests wait, and some get 503.',
    guests: 'nothing.',
    remedy:
      '`journalctl -u imds-api | grep requests-shed` has an owner in each minute. Always the same: it should ask less often, or wait for a state or for events. Many: start a second imds-api on the same database, unless that is busy',
  },
  {
    code: 'ImdsApiTokenFailures',
    what: 'someone guesses secrets or passwords, or a misconfigured client keeps trying.',
    guests: 'nothing.',
    remedy:
      'the log of your proxy shows the addresses; without a proxy, ss -Htn state established sport = :8170. Give a client with an old secret the new one; block an address that guesses',
  },
]
