/** The commands of imdsctl that work on the store or on records. */
import { Option, type Command } from 'commander'
import { EVENT_OPTIONS } from '../metadata/event-options.ts'
import { wholeNumber, type Runner } from './runner.ts'

const ID = 'such as srv-x1y2z'
const IDS_FILE = new Option('-f, --file <file>', 'also the ids in this file, one per line; - for standard input')
const DRY_RUN = new Option('--dry-run', 'write nothing: print what would be done to each instance now')
const PATHS = 'a file, a directory, or - for standard input'

const JSON_LINES = `
A file, or standard input, holds one record in JSON or YAML, or JSON lines. A line is a record, or
  {"record": {...}, "userDataBase64": "..."}        null in place of "...": no user-data
In a directory every NAME.json, NAME.yaml or NAME.yml is read, with its user-data in NAME.user-data if that is there.`
const PUT_HELP = `

Many records go over one connection. Refused records are reported on standard error and the others are published. The
exit status is the highest of all, and the last line of the output counts the records.

  jq -c '.[]' records.json | imdsctl put -
  jq -c --rawfile data user-data '{record: ., userDataBase64: ($data | @base64)}' srv-x1y2z.json | imdsctl put -`
const IMPORT_HELP = `

The store then holds what the records say: an instance that comes without user-data has none. Only refused records are printed, and the last
line counts all. In a directory every ID.removed becomes a tombstone, unless the instance has a record.`

export function addStoreCommands(program: Command, runner: Runner): void {
  addPublishCommands(program, runner)
  addChangeCommands(program, runner)
  addRegionCommands(program, runner)
  addHypervisorCommands(program, runner)
  addMaintenance(program, runner)
  program
    .command('schema')
    .description('print the JSON Schema of a record')
    .action(() =>
      runner.show(async () => {
        const { jsonSchema } = await import('../metadata/json-schema.ts')
        runner.output.print(JSON.stringify(jsonSchema(), undefined, 2))
      }),
    )
}

function addPublishCommands(program: Command, runner: Runner): void {
  const { output, work, showStore, workStore } = runner
  program
    .command('put')
    .description('publish records, each with its user-data')
    .argument('<path...>', PATHS)
    .option(
      '-u, --user-data <file>',
      'the user-data of the single record, byte for byte; - for standard input. ' +
        'Default: the user-data in the store stays',
    )
    .option('--no-user-data', 'remove the present user-data of each record that is given without user-data')
    .option('--dry-run', 'write nothing: print the result that each publish would have now')
    .addHelpText('after', JSON_LINES + PUT_HELP)
    .action(workStore(async () => (await import('./put.ts')).put))
  program
    .command('validate')
    .description('check records and their user-data; needs no store')
    .argument('<path...>', PATHS)
    .addHelpText('after', JSON_LINES)
    .action((paths: string[]) =>
      work(async ({ userDataMaxBytes }) => (await import('./put.ts')).validate(output, paths, userDataMaxBytes)),
    )
  program
    .command('get')
    .description("print an instance's record")
    .argument('<id>', ID)
    .action(showStore(async () => (await import('./commands.ts')).get))
  program
    .command('user-data')
    .description("print an instance's user-data, byte for byte")
    .argument('<id>', ID)
    .action(showStore(async () => (await import('./commands.ts')).userData))
}

function addChangeCommands(program: Command, runner: Runner): void {
  const { workStore } = runner
  program
    .command('remove')
    .description('remove instances and leave tombstones, so that every hypervisor stops serving them')
    .argument('[id...]', ID)
    .addOption(IDS_FILE)
    .option(
      '--revision <n>',
      'the revision of the removal of a single instance (default: the last one plus 1)',
      wholeNumber,
    )
    .addOption(DRY_RUN)
    .action(workStore(async () => (await import('./change.ts')).remove))
  for (const [name, description] of [
    ['seal', 'seal the user-data of instances with a new revision: no guest gets it, and no put lifts the seal'],
    ['unseal', 'lift the seals on the user-data of instances; nothing else does'],
  ] as const)
    program
      .command(name)
      .description(description)
      .argument('[id...]', ID)
      .addOption(IDS_FILE)
      .addOption(DRY_RUN)
      .action(workStore(async () => (await import('./change.ts')).changeSeals(name)))
  program
    .command('encrypt')
    .description('encrypt instances again with the first key, before you remove another key; the revisions stay')
    .argument('[id...]', 'such as srv-x1y2z (default: every instance in the store)')
    .option(
      '--from-plain',
      'encrypt plain records too, although nothing proves that they are authentic; ' +
        'use it once, when you start to use keys',
    )
    .option('--force', 'also while a daemon has not announced that it has the first key')
    .action(workStore(async () => (await import('./change.ts')).encrypt))
  program
    .command('decrypt')
    .description('decrypt every instance, and accept publishers without keys again; the revisions stay')
    .action(workStore(async () => (await import('./change.ts')).decrypt))
}

function addRegionCommands(program: Command, runner: Runner): void {
  const { showStore, workStore } = runner
  program
    .command('list')
    .description('list the instances in the store')
    .option('--hypervisor <name>', 'only instances of this hypervisor')
    .option('--address <address>', 'only owners of this address, or of an address in this IPv6 prefix, on any network')
    .option('--account <id>', 'only instances of this account (slower: it reads the records)')
    .option('--sealed', 'only instances with sealed user-data')
    .addOption(
      new Option('--removed', 'the instances that were removed in the last 7 days').conflicts([
        'hypervisor',
        'address',
        'account',
        'sealed',
      ]),
    )
    .option('--ids', 'print only ids, one per line, for remove and seal')
    .option('--count', 'print only the number of instances')
    .action(showStore(async () => (await import('./list.ts')).list))
  program
    .command('republish')
    .argument('[paths...]', PATHS)
    .description('publish a whole region again, after its store has lost changes')
    .option('--as-is', 'publish the present records of the store; lost changes stay lost')
    .action(workStore(async () => (await import('./republish-region.ts')).republishRegion))
  program
    .command('import')
    .description('publish an export, or thousands of other records; it can run again')
    .argument('<path>', PATHS)
    .option('--change-region', 'write the region of the store into each record')
    .addHelpText('after', JSON_LINES + IMPORT_HELP)
    .action(workStore(async () => (await import('./import.ts')).importRecords))
  program
    .command('export')
    .description('write all records, user-data and tombstones into a new directory, for import')
    .argument('<directory>', 'it must not exist')
    .action(workStore(async () => (await import('./export.ts')).exportRecords))
  program
    .command('init')
    .description('initialise a new region in Redis, so that its daemons become ready')
    .action(workStore(async () => (await import('./commands.ts')).init))
}

function addHypervisorCommands(program: Command, runner: Runner): void {
  const { showStore, workStore } = runner
  program
    .command('hypervisors')
    .description('list the hypervisors: version, instances, records, lag, last report, start of the drain')
    .action(showStore(async () => (await import('./hypervisors.ts')).hypervisors))
  const HYPERVISOR = 'the name of a hypervisor, such as hv1'
  program
    .command('acl')
    .description(
      'print the Redis user of a hypervisor as a line of an ACL file, with PASSWORD in place of its password',
    )
    .argument('[name]', HYPERVISOR)
    .option('--all', 'all hypervisors that are announced, drained, or named by a record')
    .action(showStore(async () => (await import('./hypervisors.ts')).acl))
  const addChange = (name: 'drain' | 'undrain' | 'forget', description: string) =>
    program
      .command(name)
      .description(description)
      .argument('<name>', HYPERVISOR)
      .action(workStore(async () => (await import('./hypervisors.ts'))[name]))
  addChange('drain', 'mark a hypervisor as drained: put and import warn about records that name it')
  addChange('undrain', 'end the drain of a hypervisor')
  program
    .command('evacuate')
    .description('move the records of a hypervisor to others; it can run again')
    .argument('<name>', HYPERVISOR)
    .option(
      '--to <names>',
      'the hypervisors that get the records, comma-separated: each record the one with the fewest',
    )
    .option(
      '--begin',
      'begin live migrations: the records name both hypervisors. Run it again without --begin when the guests have moved',
    )
    .addOption(DRY_RUN)
    .action(workStore(async () => (await import('./evacuate.ts')).evacuate))
  addChange('forget', 'delete a hypervisor from the store; refused while records name it')
}

function addMaintenance(program: Command, runner: Runner): void {
  const maintenance = program
    .command('maintenance')
    .description('announce maintenance of an instance to its guest, end it, or list its events')
    .argument('<id>', ID)
  for (const [flags, help] of EVENT_OPTIONS) maintenance.option(flags, help)
  maintenance.action(runner.workStore(async () => (await import('./maintenance.ts')).maintenance))
}
