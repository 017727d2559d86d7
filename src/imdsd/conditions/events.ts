/** Events in the logs of imdsd and of the agent of its firewall. */
import type { Meaning } from '../../conditions/condition.ts'

export const DAEMON_EVENTS: readonly Meaning[] = [
  {
    code: 'stop-failed',
    what: 'a part could not be stopped in order.',
    guests: 'nothing.',
    remedy: 'report `err`',
  },
  {
    code: 'operator-not-allowed',
    what: '`address`, not in `IMDS_OPERATOR_ALLOW`, asks for metrics; its connections are closed.',
    guests: 'nothing.',
    remedy: 'add its network, or find out who asks',
  },
  {
    code: 'token-key-malformed',
    what: 'the file of the key of session tokens was damaged, and is replaced.',
    guests: 'they fetch new session tokens.',
    remedy: 'nothing; if it repeats, check the disk',
  },
  {
    code: 'token-key-not-kept',
    what: 'the key of session tokens cannot be read or saved in the state directory.',
    guests: 'after a restart without the store they get 503, unless there are record keys.',
    remedy: 'correct owner and mode of the file in `path`, or the full disk, and restart imds while the store answers',
  },
  {
    code: 'connections-dropped',
    what: 'a listener has as many connections as it may have.',
    guests: 'some have to try several times.',
    remedy: 'as for `descriptors`',
  },
  {
    code: 'record-failed',
    what: 'a defect: a record could not be processed, and counts as faulty.',
    guests: 'as with `record-faulty`.',
    remedy: 'report `err`, and publish the instance again',
  },
  {
    code: 'request-refused',
    what: 'a request was refused, for a `reason` of `imds_requests_total`. One line a minute for each guest and reason; `leftOut` counts the others.',
    guests: 'the one at `address` gets an error.',
    remedy:
      '`imdsctl explain ADDRESS`. `unknown-peer`: the instance was started before it was published, its record names another hypervisor or address, or the anti-spoofing rules fail. `over-share`: raise `IMDS_GUEST_BURST` and `IMDS_GUEST_REQUESTS_PER_SECOND` if it needs more. `forwarded`: `IMDS_FORWARDED` can allow the proxy in the guest',
  },
  {
    code: 'signing-failed',
    what: 'an identity document or token could not be signed.',
    guests: 'one gets 503 for it.',
    remedy: 'report `err`; check the key in `IMDS_IDENTITY_KEY_FILE`',
  },
  {
    code: 'journal-not-served',
    what: '`reason` says why: another hypervisor, region, store or key, too old, or a record that this version refuses.',
    guests: 'they get 503 until the store answers.',
    remedy: 'correct the variable, the keys or the clock, or go back to the version that wrote it; restart imds',
  },
  {
    code: 'journal-rejected',
    what: 'the journal is damaged, or another program has changed it; it is deleted.',
    guests: 'they get 503 until the store answers.',
    remedy: 'nothing if the power failed; otherwise check the disk, and who writes there',
  },
  {
    code: 'journal-torn',
    what: 'the daemon was killed, or lost power, while it wrote the journal.',
    guests: 'nothing.',
    remedy: 'nothing: no change that a guest has seen is lost',
  },
  {
    code: 'state-not-written',
    what: 'the state directory cannot be locked or written: nothing is kept on disk.',
    guests: 'after a start without the store they get 503, and fetch new session tokens.',
    remedy: 'correct owner and mode of the directory and of `view.lock` in it, and restart imds',
  },
  {
    code: 'firewall-restored',
    what: 'another program has changed the table `inet imds`; the agent has restored it.',
    guests: 'some may have been kept out for seconds.',
    remedy: 'find the program, most often a firewall manager',
  },
  {
    code: 'interface-left-out',
    what: 'an interface can have no rule: its link has no usable name, or that of another interface.',
    guests: 'this one is kept out.',
    remedy:
      'use another `IMDS_LINK`, such as `tap{interfaceId:11}` (at most 15 characters, different for each id); give each interface an id of its own',
  },
]
