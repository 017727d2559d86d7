/**
 * A guest's operating system: that of this machine, on a temporary overlay.
 *
 * Its mounts, host name and processes are private, and its devices store nothing. Everything that describes this machine or an earlier boot (homes,
 * logs, cloud-init's state and configuration, DMI) is empty.
 */
import { must, run, startHeld, type Ran } from '../programs/processes.ts'
import type { Guest } from './namespaces.ts'

/** A running machine. */
export interface Machine {
  run(command: readonly string[]): Promise<Ran>
  /** The content of a file. Rejects if there is none. */
  read(path: string): Promise<Buffer>
  write(path: string, content: string): Promise<void>
  stop(): Promise<void>
}

const PREPARE = `
set -eu
read -r pid rest < /proc/self/stat # the test's number for us: /proc is still the machine's
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
umount -l /mnt # from here on this machine's own root cannot be reached, and only from here on may anybody come in
echo up $pid
exec cat
`

const ENVIRONMENT = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' }

/** Starts the machine of a guest. */
export async function startMachine({ within }: Guest): Promise<Machine> {
  const held = await startHeld([...within, 'unshare', '--mount', '--uts', '--pid', '--fork', '--kill-child', 'sh', '-c', PREPARE])
  const inside = (command: readonly string[]) => ['nsenter', '--target', held.word, '--net', '--mount', '--uts', '--pid', ...command]
  return {
    run: (command) => run(inside(command), { env: ENVIRONMENT }),
    read: (path) => must(inside(['cat', path])),
    write: async (path, content) => { await must(inside(['sh', '-c', 'cat > "$0"', path]), { input: content }) },
    stop: () => held.release(),
  }
}
