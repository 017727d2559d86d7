/** The check of the path to each instance. */
import { formatCount } from '../../runtime/amounts.ts'
import { ok } from '../../runtime/check.ts'
import type { DoctorCheck } from './hypervisor-state.ts'
import { findPaths, NOT_LOOKED_AT } from './guest-path.ts'

export const guests: DoctorCheck = {
  code: 'guests',
  run: async (look) => {
    const document = await look.firewall()
    if (!document.ok || document.value.guests.length === 0) return []
    const { guests: all } = document.value
    const paths = await findPaths(look, document.value, all)
    if (paths === undefined) return [NOT_LOOKED_AT]
    const found = paths.flatMap(({ id, steps }) =>
      steps
        .map(({ finding }) => finding)
        .filter(({ severity }) => severity !== 'ok')
        .map((finding) => ({ id, finding: { ...finding, text: `${id}: ${finding.text}` } })),
    )
    const wrong = new Set(found.map(({ id }) => id))
    const stopped = new Set(paths.filter(({ id, runs }) => !runs && !wrong.has(id)).map(({ id }) => id)).size
    const right = all.length - wrong.size - stopped
    const fine =
      `${right} of ${formatCount(all.length, 'instance')}: link, route and MAC address are right` +
      (stopped === 0 ? '' : `; the machines of ${stopped} do not run here`)
    return [...found.map(({ finding }) => finding), ...(right + stopped > 0 ? [ok(fine)] : [])]
  },
}
