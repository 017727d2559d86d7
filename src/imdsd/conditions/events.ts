/** Events in the logs of imdsd and of the agent of its firewall. */
import type { Meaning } from '../../conditions/condition.ts'

export const DAEMON_EVENTS: readonly Meaning[] = [
  {
    code: 'stop-failed',
    what: 'a part could not be stopped in order.',
    guests: 'nothing, once the next daemon runs.',
    remedy: 'report `err`',
  },
  {
    code: 'listen-ignored',
    what: 'systemd has opened the sockets, so `IMDS_LISTEN` has no effect.',
    guests: 'they reach only the addresses of the unit.',
    remedy: 'change `ListenStream=` of the socket unit, or disable the unit; delete the variable',
  },
  {
    code: 'operator-not-allowed',
    what: '`address`, which is not in `IMDS_OPERATOR_ALLOW`, asks for metrics; its connections are closed.',
    guests: 'nothing.',
    remedy: 'add its network if it may read metrics; otherwise find out who asks',
  },
  {
    code: 'clock-set-back',
    what: 'the clock of the hypervisor was set back. The age of the journal is then not known.',
    guests: 'session tokens may end later than they should.',
    remedy: 'set the clock, and start a time service',
  },
  {
    code: 'token-key-malformed',
    what: 'the file of the key of session tokens was damaged, and is replaced.',
    guests: 'they must fetch new session tokens, as all clients do.',
    remedy: 'nothing; if it repeats, check the disk',
  },
  {
    code: 'token-key-not-kept',
    what: 'the key of session tokens cannot be read or saved in the state directory.',
    guests:
      'after a restart their session tokens are rejected, and they must fetch new ones, as all clients do. Without record keys the journal is not served after a restart, so they get 503 until the store answers.',
    remedy:
      'correct the owner and the mode of the file in `path`, or the full disk, and restart imdsd while the store answers',
  },
  {
    code: 'connections-dropped',
    what: 'a listener has as many connections as it may have.',
    guests: 'some have to try several times.',
    remedy: 'stop or block a guest with thousands of connections (`ss -Htn`), or raise `LimitNOFILE=` of imds.service',
  },
  {
    code: 'files-misnamed',
    what: 'files in the directory of the store have no name of a record.',
    guests: 'those of these records get 503.',
    remedy: 'rename those in `files` by the id of their instance, such as `srv-x1y2z.json`',
  },
  {
    code: 'record-failed',
    what: 'a defect: a record could not be processed, and counts as faulty.',
    guests: 'as with `record-faulty`.',
    remedy: 'report `err`, and publish the instance again',
  },
  {
    code: 'request-refused',
    what: 'a request was refused; `reason` is that of the metric `imds_requests_total`. One line a minute for each guest and reason; `leftOut` counts the others.',
    guests: 'the one at `address` gets an error.',
    remedy:
      '`imdsctl explain ADDRESS`. `unknown-peer`: most often the instance was started before it was published, or its record names another hypervisor or address (imdsctl list, imdsctl get); if no instance should have the address, check the anti-spoofing rules. `over-share`: raise `IMDS_GUEST_BURST` and `IMDS_GUEST_REQUESTS_PER_SECOND` if the guest needs more. `forwarded`: a proxy in the guest forwards requests; `IMDS_FORWARDED` can allow that',
  },
  {
    code: 'signing-failed',
    what: 'an identity document or token could not be signed.',
    guests: 'one gets 503 for it.',
    remedy: 'report `err`; check the key in `IMDS_IDENTITY_KEY_FILE`',
  },
  {
    code: 'journal-not-served',
    what: 'the journal is of another hypervisor, region, store or token key, too old, cannot be decrypted, or has a record that is not valid in this version; `reason` says which.',
    guests: 'they get 503 until the store answers.',
    remedy:
      'correct `IMDS_HYPERVISOR`, `IMDS_REGION`, `IMDS_STORE`, the keys or the clock, or go back to the version that wrote it, and restart the daemon',
  },
  {
    code: 'journal-rejected',
    what: 'the journal is damaged, or was changed by another program, and is deleted.',
    guests: 'they get 503 until the store answers.',
    remedy: 'nothing if the power failed; otherwise check the disk, and who writes to the state directory',
  },
  {
    code: 'journal-torn',
    what: 'the daemon was killed, or lost power, while it wrote the journal.',
    guests: 'nothing: no change that a guest has seen is lost.',
    remedy: 'nothing; the next resync reads what was lost',
  },
  {
    code: 'state-not-locked',
    what: 'the state directory cannot be locked, so nothing stops a second daemon from using it.',
    guests: 'nothing, with one daemon.',
    remedy: 'use a local file system, or correct the file in `path`; start no second daemon with this directory',
  },
  {
    code: 'state-not-written',
    what: 'the state directory cannot be written. Nothing is kept on disk.',
    guests: 'after a start without the store they get 503, and must fetch new session tokens.',
    remedy: 'correct owner and mode of the directory, and restart imds',
  },
  {
    code: 'firewall-restored',
    what: 'another program has changed the table `inet imds`; the agent has restored it.',
    guests: 'some may have been kept out for a few seconds.',
    remedy: 'find the program: most often a firewall manager that flushes all tables',
  },
  {
    code: 'interface-left-out',
    what: 'an interface can have no rule: its link has no usable name, or one that another interface has.',
    guests: 'this one is kept out.',
    remedy:
      '`IMDS_LINK` makes a name of more than 15 characters, or uses too few characters of the ids: use another rule, such as `tap{interfaceId:11}`, and taps of that name. Or two records have an interface with one id: publish each under its own',
  },
]
