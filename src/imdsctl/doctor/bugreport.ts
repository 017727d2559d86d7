/** What a bug report has of this hypervisor: ids and addresses of instances, where something is wrong with them. */
import type { BugreportParts } from '../../bugreport/bugreport.ts'
import { CHECKS } from '../../imdsd/checks/checks.ts'
import { secretFiles } from '../../imdsd/checks/checks-of-files.ts'
import type { DoctorState } from '../../imdsd/checks/hypervisor-state.ts'
import { VARIABLES } from '../../imdsd/config.ts'
import { rowOf, runChecks } from '../../runtime/check.ts'
import { IMDS_SERVICE } from '../../runtime/service-environment.ts'
import { formatRows } from '../../runtime/table.ts'
import { plain } from '../../runtime/terminal.ts'

export function bugreportOf(look: DoctorState, environmentFile: string | undefined): BugreportParts {
  const { settings } = look
  const directory = settings.config?.stateDirectory
  return {
    program: 'imdsctl',
    service: IMDS_SERVICE,
    units: ['imds.socket', 'imds-address.service', 'imds-firewall.service', 'imds-network@*.socket'],
    environmentFile,
    variables: settings.variables,
    table: VARIABLES,
    secretFiles: secretFiles(settings),
    commands: [
      ['ip', '-brief', 'address'],
      ['ip', 'route', 'show'],
      ['ip', '-6', 'route', 'show'],
      ['nft', 'list', 'table', 'inet', 'imds'],
      ...(directory === undefined
        ? []
        : [
            ['ls', '-lan', directory],
            ['df', '-k', directory],
          ]),
    ],
    sections: {
      doctor: async () => formatRows((await runChecks(CHECKS, look)).map(rowOf), undefined, plain).join('\n'),
      notes: () => Promise.resolve(settings.notes.join('\n')),
      readyz: async () => {
        const readiness = await look.readiness()
        return readiness.ok ? JSON.stringify(readiness.value, undefined, 2) : readiness.faults.join()
      },
      metrics: async () => {
        const metrics = await look.metrics()
        return metrics.ok
          ? [...metrics.value].map(([name, value]) => `${name} ${value}`).join('\n')
          : metrics.faults.join()
      },
    },
  }
}
