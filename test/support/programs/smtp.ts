/** A mail server on a free port of 127.0.0.1 (npm's smtp-server), which keeps what it gets. */
import { readFileSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import PostalMime, { type Email } from 'postal-mime'
import { SMTPServer } from 'smtp-server'
import type { Test } from 'tap'
import type { Certificate } from '../redis/tls.ts'

/** A mail that was delivered. `raw`: its lines as they came. */
export interface Delivered {
  readonly from: string
  readonly to: readonly string[]
  readonly mail: Email
  readonly raw: string
  readonly isSecure: boolean
  readonly user: string | undefined
}

/** Options. `credentials`: AUTH is required, over TLS. `port`: default a free one. */
export interface SmtpOptions {
  readonly certificate?: Certificate
  readonly credentials?: { readonly user: string; readonly password: string }
  readonly port?: number
}

/** A mail server. */
export interface TestSmtp {
  readonly port: number
  readonly delivered: readonly Delivered[]
  /** Recipients that are refused (550). */
  readonly refused: Set<string>
  /** While set, mails wait for it before they are accepted. */
  hold: Promise<unknown> | undefined
  /** Mails that are being held. */
  readonly held: number
  close(): Promise<void>
}

/** Starts a mail server, which ends with the test. */
export async function startSmtp(t: Test, { certificate, credentials, port = 0 }: SmtpOptions = {}): Promise<TestSmtp> {
  const delivered: Delivered[] = []
  const refused = new Set<string>()
  let held = 0
  const smtp = {
    delivered,
    refused,
    hold: undefined as Promise<unknown> | undefined,
    get held() {
      return held
    },
    get port() {
      return (server.server.address() as AddressInfo).port
    },
    close: () =>
      new Promise<void>((resolve) => {
        for (const { _socket: socket } of server.connections as unknown as Set<{ _socket: { destroy(): void } }>)
          socket.destroy()
        server.close(() => resolve())
      }),
  }
  const server = new SMTPServer({
    ...(certificate === undefined
      ? { disabledCommands: ['STARTTLS'] }
      : { cert: readFileSync(certificate.certFile), key: readFileSync(certificate.keyFile) }),
    authOptional: credentials === undefined,
    logger: false,
    onAuth: ({ username, password }, _session, callback) => {
      if (username === credentials?.user && password === credentials?.password) callback(null, { user: username })
      else callback(new Error(`no such user: ${String(username)} ${String(password)}`))
    },
    onRcptTo: ({ address }, _session, callback) => {
      callback(
        refused.has(address) ? Object.assign(new Error(`<${address}> is unknown here`), { responseCode: 550 }) : null,
      )
    },
    onData: (stream, { envelope, secure, user }, callback) => {
      void (async () => {
        const raw = Buffer.concat((await stream.toArray()) as Buffer[])
        held++
        await smtp.hold
        held--
        delivered.push({
          from: envelope.mailFrom === false ? '' : envelope.mailFrom.address,
          to: envelope.rcptTo.map(({ address }) => address),
          mail: await PostalMime.parse(raw),
          raw: raw.toString(),
          isSecure: secure,
          user: user as string | undefined,
        })
        callback(null)
      })()
    },
  })
  server.on('error', () => undefined)
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve))
  t.teardown(() => smtp.close())
  return smtp
}
