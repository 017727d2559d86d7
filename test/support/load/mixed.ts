/** Clients of imds-api that read, create, map and delete without a pause. */
import { formatRequest, Wire } from './wire.ts'

/** What clients were answered. */
export interface Mixed {
  /** `METHOD KIND STATUS` -> how often. */
  readonly answers: ReadonlyMap<string, number>
  /** How long each request took, in ms. */
  readonly ms: readonly number[]
}

/**
 * Runs `clients` clients, which share the tokens, until `isOver` says so or each has gone through `rounds`. In a round
 * a client makes a server and a cloud IP, maps it, reads and lists them, and deletes both.
 */
export async function runMixed(
  port: number,
  tokens: readonly string[],
  clients: number,
  rounds: number,
  isOver: () => boolean,
): Promise<Mixed> {
  const answers = new Map<string, number>()
  const ms: number[] = []
  await Promise.all(
    Array.from({ length: clients }, async (_, client) => {
      const wire = await Wire.open(port, `127.0.2.${1 + (client % 8)}`)
      const ask = async (method: string, path: string, body?: object) => {
        const reply = await wire.ask(formatRequest(tokens[client % tokens.length]!, method, `/1.0/${path}`, body))
        const name = `${method} ${path.split(/[/?]/, 1)[0]!} ${reply.status}`
        answers.set(name, (answers.get(name) ?? 0) + 1)
        ms.push(reply.ms)
        return (reply.body === '' ? {} : JSON.parse(reply.body)) as {
          readonly id?: string
          readonly interfaces?: readonly { readonly id: string }[]
        }
      }
      for (let round = 0; round < rounds && !isOver(); round++) {
        const { id: server, interfaces } = await ask('POST', 'servers', { image: 'debian-12' })
        const { id: cloudIp } = await ask('POST', 'cloud_ips', { name: `mixed ${client}` })
        if (server === undefined || cloudIp === undefined) continue // it is in the answers
        await ask('POST', `cloud_ips/${cloudIp}/map`, { destination: interfaces![0]!.id })
        await ask('GET', `servers/${server}`)
        await ask('GET', 'servers?limit=20')
        await ask('GET', `cloud_ips/${cloudIp}`)
        await ask('GET', 'cloud_ips?limit=20')
        await ask('PUT', `servers/${server}`, { name: `renamed ${round}` })
        await ask('GET', 'account')
        await ask('POST', `cloud_ips/${cloudIp}/unmap`)
        await ask('DELETE', `cloud_ips/${cloudIp}`)
        await ask('DELETE', `servers/${server}`)
      }
      wire.end()
    }),
  )
  return { answers, ms }
}

/** Those that are not 2xx. */
export function failed(answers: ReadonlyMap<string, number>): Readonly<Record<string, number>> {
  return Object.fromEntries([...answers].filter(([name]) => !/ 2\d\d$/.test(name)))
}
