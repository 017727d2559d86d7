/** Conditions of this hypervisor: addresses, networks, the firewall, operators, certificates and the state directory. */
import { always, type Condition, type SomeThings } from '../../conditions/condition.ts'
import { formatDuration } from '../../runtime/ago.ts'
import { formatBytes } from '../../runtime/amounts.ts'
import type { DaemonConditions, DaemonState } from './state.ts'

/** Rules follow a change of the view within a second; a busy agent needs a few. */
const RULES_LATE_SECONDS = 15
const DAY_MS = 86_400_000
const CERTIFICATE_DAYS = 30
/** What a state directory needs beside a second copy of the journal: what is appended meanwhile, and the key. */
const SPARE_BYTES = 16 * 1024 * 1024
const NEARLY_ALL = 0.9
const RENEW = 'replace it and its key: docs/configuration.md#identity-keys'

const joined = (texts: readonly string[]) => (texts.length === 0 ? undefined : texts.join('; '))

function formatWaiting({ count, first }: SomeThings): string {
  return count === 0 ? '' : `; nobody is served on ${count} addresses: ${first.join('; ')}`
}

/** Of the certificate of identity documents. */
export const IDENTITY: readonly Condition<Pick<DaemonState, 'certificate' | 'wallMs'>>[] = [
  {
    code: 'identity-invalid',
    severity: 'failure',
    what: 'the certificate in IMDS_IDENTITY_CERT_FILE has expired, or is not valid yet.',
    guests: 'who verifies identity documents may reject them.',
    remedy: `${RENEW}; if it is not valid yet, set the clock first`,
    found: ({ certificate, wallMs }) => {
      if (certificate === undefined) return undefined
      const { validFromDate, validToDate } = certificate
      const [from, to] = [validFromDate.getTime() - wallMs, validToDate.getTime() - wallMs]
      if (to <= 0) return `the certificate of identity documents expired ${formatDuration(-to / 1000)} ago`
      return from > 0
        ? `the certificate of identity documents is not valid for another ${formatDuration(from / 1000)}`
        : undefined
    },
  },
  {
    code: 'identity-expires',
    severity: 'warning',
    what: `the certificate in IMDS_IDENTITY_CERT_FILE expires within ${CERTIFICATE_DAYS} days.`,
    guests: 'after that, who verifies identity documents may reject them.',
    remedy: RENEW,
    found: ({ certificate, wallMs }) => {
      const leftMs = (certificate?.validToDate.getTime() ?? Infinity) - wallMs
      return leftMs > 0 && leftMs < CERTIFICATE_DAYS * DAY_MS
        ? `the certificate of identity documents expires in ${formatDuration(leftMs / 1000)}`
        : undefined
    },
  },
]

export const HOST: DaemonConditions = [
  {
    code: 'address-missing',
    severity: 'failure',
    what: 'no interface has an address at which the daemon listens.',
    guests: 'no packet of a guest arrives there.',
    remedy: 'systemctl restart imds-address; find out what removes it, most often a network manager',
    isUnready: always,
    found: ({ missingAddresses }) => joined(missingAddresses),
  },
  {
    code: 'network-not-served',
    severity: 'failure',
    what: 'IMDS_LISTEN names an address of a network, and no socket of systemd listens there.',
    guests: 'those of this network get no response.',
    remedy:
      'systemctl status imds-network@NETWORK.socket (or imds.socket) has the cause, most often a missing link; correct it or IMDS_LISTEN, and run systemctl restart imds',
    isUnready: always,
    found: ({ unservedNetworks }) => joined(unservedNetworks),
  },
  {
    code: 'firewall-awaited',
    severity: 'failure',
    what: 'only the firewall separates the networks, and it has not applied its rules for this daemon.',
    guests: 'all get 503, for a second at a start.',
    remedy: 'systemctl enable --now imds-firewall; journalctl -u imds-firewall says why it cannot',
    isUnready: always,
    found: ({ firewallWait }) => firewallWait,
  },
  {
    code: 'firewall-not-applied',
    severity: 'failure',
    what: 'the rules in the kernel are not those that the daemon wants: the agent does not run, or nft refuses them.',
    guests: 'admitted ones are served; new ones, and the new owner of an address, are kept out.',
    remedy: 'systemctl restart imds-firewall, and see journalctl -u imds-firewall -n 50',
    found: ({ firewall: { required, applied, ageSeconds, failed }, firewallWait, waiting }) => {
      if (!required || applied || firewallWait !== undefined) return undefined
      if (failed === undefined && ageSeconds < RULES_LATE_SECONDS) return undefined
      const reason = failed === undefined ? '' : ` (${failed})`
      return `its rules have not matched the view for ${formatDuration(ageSeconds)}${reason}${formatWaiting(waiting)}`
    },
  },
  {
    code: 'operators-cut-off',
    severity: 'failure',
    what: 'a listener of operators cannot be opened; it is tried again.',
    guests: 'those that run are served; without the unix socket imdsctl wait fails, and no new one starts.',
    remedy:
      'end the program that has the port (ss -ltnp), correct the variable that is named, or make the directory of the socket writable',
    isUnready: always,
    found: ({ operatorProblems }) => joined(operatorProblems),
  },
  {
    code: 'descriptors',
    severity: 'failure',
    what: 'nearly all file descriptors are open, most often since a guest holds thousands of connections.',
    guests: 'new connections may be closed.',
    remedy:
      'ss -Htn state established sport = :80 | awk \'{sub(/:[0-9]+$/, "", $4); print $4}\' | sort | uniq -c | sort -n shows who has them: stop or block that guest. If all have some, raise LimitNOFILE= in a drop-in of imds.service',
    found: ({ host }) =>
      host !== undefined && host.openDescriptors > host.maxDescriptors * NEARLY_ALL
        ? `${host.openDescriptors} of ${host.maxDescriptors} file descriptors are open`
        : undefined,
  },
  ...IDENTITY,
  {
    code: 'state-directory',
    severity: 'warning',
    what: 'the state directory cannot be seen, others can enter it, or its disk is nearly full.',
    guests: 'nothing, until the journal cannot be written (view-not-kept).',
    remedy: 'make room on its disk, repair it, or run chmod 700 on it (its owner is imds)',
    found: ({ host, stateDirectory, journal }) => {
      if (host === undefined) return undefined
      const { directory, freeBytes = Infinity, journalBytes } = host
      if (directory.kind === 'unseen') return `${stateDirectory} cannot be seen: ${directory.code}`
      if ((directory.mode & 0o077) !== 0) {
        const mode = (directory.mode & 0o7777).toString(8).padStart(4, '0')
        return `${stateDirectory} has mode ${mode}: other users can enter it`
      }
      return journal === undefined && freeBytes < journalBytes + SPARE_BYTES
        ? `${stateDirectory} has ${formatBytes(freeBytes)} left, and the journal has ${formatBytes(journalBytes)}`
        : undefined
    },
  },
  {
    code: 'view-not-kept',
    severity: 'warning',
    what: 'the journal cannot be written, and was deleted; the daemon tries again.',
    guests: 'after a start without the store they get 503.',
    remedy: 'make room, correct the owner of the directory, or repair the disk',
    found: ({ journal }) => (journal?.kind === 'lost' ? `the view is not kept on disk: ${journal.reason}` : undefined),
  },
  {
    code: 'journal-not-deleted',
    severity: 'warning',
    what: 'the journal can neither be written nor deleted, and is older than what guests get.',
    guests: 'after a reboot without the store they could get an old state.',
    remedy: 'delete it before a reboot (docs/operations/jobs.md#files-in-the-state-directory), and repair the disk',
    found: ({ journal }) =>
      journal?.kind === 'not-deleted' ? `the old journal of the view cannot be deleted: ${journal.reason}` : undefined,
  },
  {
    code: 'journal-not-rewritten',
    severity: 'warning',
    what: 'there is no room to rewrite the journal. It keeps every change.',
    guests: 'nothing.',
    remedy: 'make room in the state directory',
    found: ({ journal }) =>
      journal?.kind === 'not-rewritten' ? `the journal of the view cannot be rewritten: ${journal.reason}` : undefined,
  },
]
