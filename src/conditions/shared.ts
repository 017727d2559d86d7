/** Conditions that each program finds in its own way. */
import type { Meaning } from './condition.ts'

export const STORE_BEHIND: Meaning = {
  code: 'store-behind',
  what: 'Redis has lost changes: an old dump was loaded, or a replica that lagged was promoted.',
  guests: 'they keep what they have. Changes that read before they write are refused.',
  remedy:
    'imdsctl republish (imds-api does it by itself; imds-api reconcile --dry-run says when it is done); find out why Redis went back',
}

export const HYPERVISOR_DUPLICATE: Meaning = {
  code: 'hypervisor-duplicate',
  what: 'several daemons have the name of one hypervisor: a machine was cloned, or an environment file was copied.',
  guests: 'those of the hypervisor whose name is missing get 503.',
  remedy:
    'on the wrong one correct IMDS_HYPERVISOR, delete /var/lib/imds if it was cloned, and run systemctl restart imds',
}
