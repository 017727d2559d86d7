/**
 * The operating system of a guest: this machine's files on a temporary overlay.
 *
 * Its mounts, host name and processes are its own. Directories that describe this machine or an earlier boot are empty:
 * homes, logs, DMI, and the state and configuration of cloud-init.
 */
import { must, run, startChild, type Ran } from '../programs/processes.ts'
import type { Guest } from './namespaces.ts'

/** A running machine. */
export interface Machine {
  run(command: readonly string[]): Promise<Ran>
  /** Returns the content of a file. Rejects if it does not exist. */
  read(path: string): Promise<Buffer>
  write(path: string, content: string): Promise<void>
  stop(): Promise<void>
}

/** Prepares the file system. Prints `up` with its process id as the test sees it, and waits until its input ends. */
const PREPARE = `
set -eu
read -r pid rest < /proc/self/stat # here /proc is still that of the test
mount -t tmpfs tmpfs /mnt
cd /mnt
mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay root
cd root
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
[ ! -d sys/class/dmi/id ] || mount -t tmpfs tmpfs sys/class/dmi/id
for empty in dev etc/cloud/cloud.cfg.d home root run tmp var/lib/cloud var/log; do
  mkdir -p $empty
  mount -t tmpfs tmpfs $empty
done
for device in full null random tty urandom zero; do
  touch dev/$device
  mount --bind /dev/$device dev/$device
done
pivot_root . mnt
umount -l /mnt # the real root is out of reach from here on: only now may the test run commands inside
echo up $pid
exec cat
`

const ENVIRONMENT = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' }

/** Starts the operating system of a guest. */
export async function startMachine({ within }: Guest): Promise<Machine> {
  const child = await startChild([
    ...within,
    'unshare',
    '--mount',
    '--uts',
    '--pid',
    '--fork',
    '--kill-child',
    'sh',
    '-c',
    PREPARE,
  ])
  const inside = (command: readonly string[]) => [
    'nsenter',
    '--target',
    child.readyValue,
    '--net',
    '--mount',
    '--uts',
    '--pid',
    ...command,
  ]
  return {
    run: (command) => run(inside(command), { env: ENVIRONMENT }),
    read: (path) => must(inside(['cat', path])),
    write: async (path, content) => {
      await must(inside(['sh', '-c', 'cat > "$0"', path]), { input: content })
    },
    stop: () => child.stop(),
  }
}
