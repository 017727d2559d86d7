/** The commands of imdsctl that ask the daemon of this hypervisor, or work on the hypervisor itself. */
import { Option, type Command } from 'commander'
import type { FirewallOptions } from './firewall-agent/agent.ts'
import { operatorSocketOf } from '../imdsd/operator/paths.ts'
import { checkId } from './failure.ts'
import { contextOf, wholeNumber, type Runner } from './runner.ts'

const ID = 'such as srv-x1y2z'

const DOCTOR_HELP = `
Exit statuses: 0 if all is well, 1 if there are warnings, 2 if there are failures. Run it as root: other users see less.`

export function addDaemonCommands(program: Command, runner: Runner): void {
  addGuestCommands(program, runner)
  addReports(program, runner)
  addDoctorCommands(program, runner)
  addJwks(program, runner)
  addFirewall(program, runner)
}

/** `--operator`: the operators' API of the daemon. */
function operatorOption({ env }: Runner): Option {
  return new Option('--operator <socket>', 'the daemon, by its unix socket for operators: unix:PATH').default(
    operatorSocketOf(env),
  )
}

function addGuestCommands(program: Command, runner: Runner): void {
  const { output, own, show, work } = runner
  program
    .command('wait')
    .description('wait until the daemon of this hypervisor serves an instance, so that its guest can be started')
    .argument('<id>', ID)
    .option(
      '--revision <n>',
      'the revision to wait for; a later one counts too (default: what the store has)',
      wholeNumber,
    )
    .addOption(
      new Option('--order <n>', 'the publish to wait for, as the order that put --json prints; a later one counts too')
        .argParser(wholeNumber)
        .conflicts('revision'),
    )
    .option('--timeout <seconds>', 'the longest time to wait', wholeNumber, 30)
    .addOption(operatorOption(runner))
    .action((id: string, options: { revision?: number; order?: number; timeout: number; operator: string }) =>
      work(async (all) => {
        const { lastPublish, wait } = await import('./commands.ts')
        checkId(id)
        const { revision = 0, order = 0 } = options
        const awaited = revision + order > 0 ? { revision, order } : await lastPublish(contextOf(runner, all), id)
        await wait(output, id, { ...options, ...awaited })
      }),
    )
  program
    .command('explain')
    .description(
      'explain the responses that a guest gets, and list its requests; or explain a code of a log line or an alert',
    )
    .argument(
      '<address-id-or-code>',
      'the address of a guest, such as 10.0.0.2, the id of its instance, such as srv-x1y2z, or a code of a log line or an alert, such as store-lost',
    )
    .option('--network <name>', 'the network of the address', 'default')
    .addOption(operatorOption(runner))
    .action((target: string, { network, operator }: { network: string; operator: string }) =>
      show(async ({ environmentFile }) =>
        (await import('./explain.ts')).explain({ output, env: own, environmentFile, operator }, target, network),
      ),
    )
}

function addReports(program: Command, runner: Runner): void {
  const { output, show } = runner
  program
    .command('reports')
    .description('print the reports of a guest: its claims, which nothing verifies')
    .argument('<id>', ID)
    .addOption(operatorOption(runner))
    .action((id: string, { operator }: { operator: string }) =>
      show(async () => (await import('./reports.ts')).reports(output, id, operator)),
    )
}

function addDoctorCommands(program: Command, runner: Runner): void {
  const { output, own, work } = runner
  for (const [name, description] of [
    ['doctor', 'check everything that imds needs on this hypervisor, and print remedies'],
    ['status', 'print the state of this daemon, and problems'],
  ] as const)
    program
      .command(name)
      .description(description)
      .addHelpText('after', DOCTOR_HELP)
      .option('--service', 'take only the variables of imds.service, not those of this shell (the default of root)')
      .option('--no-service', 'variables of this shell replace those of imds.service')
      .addOption(operatorOption(runner))
      .action((options: { service?: boolean; operator: string }, command: Command) =>
        work(async ({ environmentFile }) => {
          const { service = process.getuid?.() === 0 } = options
          const operator = command.getOptionValueSource('operator') === 'default' ? undefined : options.operator
          return (await import('./doctor.ts'))[name]({ output, env: own, environmentFile, service, operator })
        }),
      )
}

function addJwks(program: Command, { output, work }: Runner): void {
  program
    .command('jwks')
    .description('write the public documents of an issuer of identity tokens, which its web server serves')
    .argument('<directory>', 'where to write them')
    .argument('<path...>', 'the certificate of each key that signs tokens, or will soon')
    .addOption(new Option('--issuer <url>', 'the issuer of the tokens').env('IMDS_IDENTITY_ISSUER'))
    .action((directory: string, files: string[], { issuer }: { issuer?: string }) =>
      work(async () => (await import('./jwks.ts')).publishKeys(output, directory, files, issuer)),
    )
}

function addFirewall(program: Command, runner: Runner): void {
  const { output, env, work } = runner
  program
    .command('firewall')
    .description("print the firewall's rules, or keep them in the kernel")
    .option('--apply', 'apply them in one transaction; without it, only print them')
    .option('--watch', 'with --apply: follow the view and undo changes by others, until interrupted; the rules stay')
    .option('--remove', 'remove the rules')
    .addOption(operatorOption(runner))
    .action((options: Omit<FirewallOptions, 'own' | 'journalStream'>) =>
      work(async () => {
        const { IMDS_LISTEN, IMDS_OPERATOR_LISTEN, IMDS_LINK, JOURNAL_STREAM } = env
        const { firewall } = await import('./firewall-agent/agent.ts')
        await firewall(output, {
          ...options,
          own: { IMDS_LISTEN, IMDS_OPERATOR_LISTEN, IMDS_LINK },
          journalStream: JOURNAL_STREAM,
        })
      }),
    )
}
