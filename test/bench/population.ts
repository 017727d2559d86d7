/**
 * A region full of instances. Each has its own loopback address, so that this machine can send requests as any of them;
 * the first is 127.0.0.1.
 */
import { openStore } from '../../src/store/open.ts'
import { anInstance } from '../support/fixtures/instance.ts'

/** The hypervisor of all instances. */
export const HYPERVISOR = 'hv1'
/** Bytes of user-data that each instance has. */
export const USER_DATA_BYTES = 1024

const BATCH = 50

/** The id of the instance at a position. */
export function idOf(position: number): string {
  return `srv-${position.toString(36).padStart(5, '0')}`
}

/** The address of the instance at a position. */
export function addressOf(position: number): string {
  return `127.0.${(position + 1) >> 8}.${(position + 1) & 255}`
}

/** The record of the instance at a position, with the fields of a real one and its revision as a tag. */
export function recordOf(position: number, region: string, revision: number): Record<string, unknown> {
  const suffix = idOf(position).slice('srv-'.length)
  const hex = position.toString(16).padStart(4, '0')
  const cloudIp = `198.18.${position >> 8}.${position & 255}`
  return anInstance({
    id: idOf(position),
    region,
    revision,
    fqdn: `srv-${suffix}.${region}.example.com`,
    hypervisors: [HYPERVISOR],
    interfaces: [
      {
        id: `int-${suffix}`,
        macAddress: `02:24:19:00:${hex.slice(0, 2)}:${hex.slice(2)}`,
        ipv4Addresses: [`${addressOf(position)}/8`],
        ipv6Addresses: [`fd00::${(position + 1).toString(16)}/64`],
        cloudIps: [
          {
            id: `cip-${suffix}`,
            publicIpv4: cloudIp,
            fqdn: `cip-${cloudIp.replaceAll('.', '-')}.${region}.example.com`,
          },
        ],
      },
    ],
    tags: { Name: `guest-${position}`, revision: String(revision) },
    options: { instanceMetadataTags: 'enabled' },
  })
}

/** User-data, different for each instance. */
export function userDataOf(position: number, bytes = USER_DATA_BYTES): Uint8Array {
  return Buffer.alloc(bytes, `#cloud-config\n# ${idOf(position)}\n`)
}

/** Publishes `count` instances into a region, and returns the environment of a daemon that serves them. */
export async function populate(
  redisUrl: string,
  region: string,
  count: number,
): Promise<Readonly<Record<string, string>>> {
  const store = await openStore({ url: redisUrl, region })
  try {
    for (let at = 0; at < count; at += BATCH) {
      await Promise.all(
        Array.from({ length: Math.min(BATCH, count - at) }, async (_, i) => {
          const { kind: outcome } = await store.put(recordOf(at + i, region, 1), userDataOf(at + i))
          if (outcome !== 'published') throw new Error(`${idOf(at + i)} could not be published: ${outcome}`)
        }),
      )
    }
  } finally {
    await store.close()
  }
  return { IMDS_STORE: redisUrl, IMDS_REGION: region, IMDS_HYPERVISOR: HYPERVISOR }
}
