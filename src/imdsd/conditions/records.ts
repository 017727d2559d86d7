/** Conditions of records, and of the instances and addresses in the view. */
import { formatListed } from '../../conditions/condition.ts'
import type { DaemonState, DaemonConditions } from './state.ts'

/** The causes of these are conditions themselves. */
const hasCause = ({ sync }: DaemonState) => sync.storeProblem !== undefined

const CORRECT =
  'publish a corrected record. "rejected": it is not encrypted, was changed or moved, or its record key is missing here'

export const RECORDS: DaemonConditions = [
  {
    code: 'record-not-served',
    severity: 'failure',
    what: 'a record is invalid, or its user-data does not match it, and its instance is not served.',
    guests: 'its guest gets 503.',
    remedy: CORRECT,
    found: (state) =>
      hasCause(state) ? undefined : formatListed(state.unserved, 'records that cannot be used, and are not served'),
  },
  {
    code: 'record-faulty',
    severity: 'warning',
    what: 'a record is invalid, or its user-data does not match it; the last good one is served.',
    guests: 'its guest gets the last good state.',
    remedy: CORRECT,
    found: (state) =>
      hasCause(state)
        ? undefined
        : formatListed(state.outdated, 'records that cannot be used, and whose last good state is served'),
  },
  {
    code: 'instance-absent',
    severity: 'warning',
    what: 'a served instance is no longer in the store, and was not removed: its record was evicted, deleted or lost.',
    guests: 'it is still served.',
    remedy:
      'publish those that run again, and imdsctl remove ID --revision N the others; if they are many, restore Redis first',
    found: ({ sync, absent }) =>
      sync.isStoreEmpty ? undefined : formatListed(absent, 'served instances that are no longer in the store'),
  },
  {
    code: 'address-contested',
    severity: 'failure',
    what: 'several instances claim an address: a program writes into the store without our script.',
    guests: 'nobody is served on it.',
    remedy: 'publish the wrong instance without the address, or imdsctl remove it if it is gone',
    found: ({ contested }) => formatListed(contested, 'addresses that several instances claim'),
  },
  {
    code: 'address-lost',
    severity: 'warning',
    what: 'an instance has lost addresses to one that was published later, most often since this hypervisor missed its removal.',
    guests: 'only the later one is served on them.',
    remedy: 'imdsctl remove ID --revision N; if it still runs, publish it with addresses of its own',
    found: ({ lostAddresses }) => formatListed(lostAddresses, 'instances that have lost addresses to a later one'),
  },
]
