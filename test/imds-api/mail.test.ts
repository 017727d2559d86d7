/** Invitations by mail, to a real SMTP server: what they say, that each is sent, and that nothing waits for them. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Writable } from 'node:stream'
import { sql } from 'kysely'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { DatabaseReport } from '../../src/imds-api/http/database-errors.ts'
import { InvitationSender, type InvitationOutcome } from '../../src/imds-api/mail/sender.ts'
import { buildSmtp } from '../../src/imds-api/mail/smtp.ts'
import { ADA, MARY, ONE, TWO, withMary } from '../support/fixtures/region.ts'
import { anApi, openDatabaseOf, startImdsApi, startProcess, setRow } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { startSmtp, type TestSmtp } from '../support/programs/smtp.ts'
import { anAuthority } from '../support/redis/tls.ts'
import { shortDirectory } from '../support/test-directory.ts'

const PAGE = 'https://cloud.example.com/invitations'
const FROM = 'noreply@example.com'
const EMAIL = 'mary@example.com'
const api = await anApi(t, { region: withMary() })
const { db } = api.database

interface Member {
  readonly id: string
  readonly status: string
}
const invite = async (email = EMAIL) =>
  (await api.call('POST', '/1.0/collaborations', { email, role: 'admin' })).body as Member
const rowOf = async (id: string) =>
  db.selectFrom('collaborations').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
const invitedAt = async (id: string) => (await rowOf(id)).invited_at

/** Starts a sender in this process. `port` undefined: without mail. */
function startSender(t: Test, port: number | undefined) {
  const [outcomes, log]: [InvitationOutcome[], string[]] = [[], []]
  const stream = new Writable({
    write: (chunk, _encoding, done) => {
      log.push(String(chunk))
      done()
    },
  })
  const mail =
    port === undefined
      ? undefined
      : {
          send: buildSmtp({
            host: '127.0.0.1',
            port,
            tls: 'none',
            credentials: undefined,
            from: FROM,
            invitationUrl: PAGE,
          }),
          invitationUrl: PAGE,
        }
  const logger = pino({ level: 'debug' }, stream)
  const sender = new InvitationSender({
    db,
    mail,
    count: (outcome) => outcomes.push(outcome),
    databaseReport: new DatabaseReport(logger),
    log: logger,
  })
  sender.start()
  t.teardown(() => sender.stop())
  return { sender, outcomes, log }
}

/** Holds every mail until the returned function is called. */
function hold(smtp: TestSmtp): () => void {
  const held = Promise.withResolvers<undefined>()
  smtp.hold = held.promise
  return () => {
    held.resolve(undefined)
    smtp.hold = undefined
  }
}

/** Pending invitations of an account, a second after each other. */
const pendingOf = (account: string, count: number, ageSeconds: number) =>
  Array.from({ length: count }, (_, i) => ({
    id: `col-${account.slice(-1)}${String(i).padStart(4, '0')}`,
    account_id: account,
    user_id: null,
    inviter_id: ADA,
    email: `${account}-${i}@example.com`,
    role: 'admin' as const,
    status: 'pending' as const,
    created_at: new Date(Date.now() - 1000 * (ageSeconds - i)),
    started_at: null,
    finished_at: null,
  }))

/** The warnings of a sender's log. */
const warningsOf = (log: readonly string[]) =>
  log.map((line) => JSON.parse(line) as Readonly<Record<string, unknown>>).filter(({ level }) => level === 40)

t.beforeEach(async () => {
  await db.deleteFrom('collaborations').execute()
})

t.test('the invitee gets a mail, and its link leads to the collaboration, which the invitee accepts', async (t) => {
  const smtp = await startSmtp(t)
  const { outcomes, log } = startSender(t, smtp.port)
  const { id } = await invite()
  await until(() => smtp.delivered.length === 1, 'the mail')
  const [{ mail, ...envelope }] = smtp.delivered as [(typeof smtp.delivered)[number]]
  t.match(envelope, { from: FROM, to: [EMAIL], isSecure: false, user: undefined })
  t.match(mail, {
    from: { address: FROM },
    to: [{ address: EMAIL }],
    subject: 'Ada Lovelace invites you to the account Analytical Engines',
  })
  t.match(
    mail.headers.find(({ key }) => key === 'auto-submitted'),
    { value: 'auto-generated' },
  )
  t.notOk(mail.html)
  t.notMatch(mail.text, 'sign up')
  const [link = ''] = /https:\S+/.exec(mail.text!) ?? []
  t.match(link, PAGE)
  const mary = await api.userToken(MARY)
  t.match(
    await api.callWith(
      mary,
      'POST',
      `/1.0/user/collaborations/${new URL(link).searchParams.get('collaboration')!}/accept`,
    ),
    { status: 200, body: { id, status: 'accepted' } },
  )
  t.strictSame(outcomes, ['sent'])
  t.notMatch(log.join(''), EMAIL)
})

t.test('the mail to an address without a user says to sign up, and the response does not show it', async (t) => {
  const smtp = await startSmtp(t)
  startSender(t, smtp.port)
  const members = [await invite('Mary@example.com'), await invite('nobody@example.com')]
  await until(() => smtp.delivered.length === 2, 'the mails')
  const textOf = (address: string) => smtp.delivered.find(({ to: [to] }) => to === address)!.mail.text
  t.notMatch(textOf('Mary@example.com'), 'sign up')
  t.match(textOf('nobody@example.com'), 'There is no user with this address yet: sign up with it first.')
  t.strictSame(
    ...(members.map((member) =>
      Object.entries(member).filter(([field]) => !['id', 'url', 'email', 'created_at'].includes(field)),
    ) as [unknown, unknown]),
  )
})

t.test('resend sends a pending invitation again, once', async (t) => {
  const smtp = await startSmtp(t)
  startSender(t, smtp.port)
  const { id } = await invite()
  await until(async () => (await invitedAt(id)) !== null, 'the first mail')
  t.match(await api.call('POST', `/1.0/collaborations/${id}/resend`), { status: 200 })
  await until(async () => (await invitedAt(id)) !== null, 'the second mail')
  t.equal(smtp.delivered.length, 2)
  t.equal((await api.call('DELETE', `/1.0/collaborations/${id}`)).status, 200)
  t.equal((await api.call('POST', `/1.0/collaborations/${id}/resend`)).status, 409)
  t.equal(smtp.delivered.length, 2)
})

t.test('no request waits while the mail server is slow, not even one that cancels the invitation', async (t) => {
  const smtp = await startSmtp(t)
  const release = hold(smtp)
  const { outcomes } = startSender(t, smtp.port)
  const { id } = await invite()
  await until(() => smtp.held === 1, 'the mail to be on its way')
  t.match(await api.call('DELETE', `/1.0/collaborations/${id}`), { status: 200, body: { status: 'cancelled' } })
  t.equal((await invite()).status, 'pending')
  t.strictSame([smtp.held, outcomes], [1, []], 'the mail is still on its way')
  release()
  await until(() => smtp.delivered.length === 2, 'both mails')
  t.match(await api.call('GET', `/1.0/collaborations/${id}`), { body: { status: 'cancelled' } })
})

t.test(
  'an invitation the mail server refuses is tried again, others do not wait, no log has the address',
  async (t) => {
    const smtp = await startSmtp(t)
    smtp.refused.add('eve@example.com')
    const { outcomes, log } = startSender(t, smtp.port)
    const { id } = await invite('eve@example.com')
    await until(() => outcomes.filter((outcome) => outcome === 'failed').length >= 2, 'two attempts')
    await invite()
    await until(() => smtp.delivered.length === 1, 'the other mail')
    t.strictSame(smtp.delivered[0]!.to, [EMAIL])
    t.equal(await invitedAt(id), null)
    t.equal((await rowOf(id)).send_fault, 'the mail server answers 550 to RCPT TO')
    smtp.refused.clear()
    await until(() => smtp.delivered.length === 2, 'the mail after the server takes it')
    t.strictSame(smtp.delivered[1]!.to, ['eve@example.com'])
    t.strictSame(warningsOf(log), [], 'the condition says it')
    t.notMatch(log.join(''), '@')
  },
)

t.test('while the mail server is away invitations wait, though the clock is set back meanwhile', async (t) => {
  const first = await startSmtp(t)
  const { port } = first
  await first.close()
  const { id } = await invite()
  const { outcomes } = startSender(t, port)
  await until(() => outcomes.includes('failed'), 'an attempt')
  await until(async () => (await rowOf(id)).send_fault?.includes('ECONNREFUSED') === true, 'its reason')
  await setRow(db, 'collaborations', id, { send_at: new Date(Date.now() + 86_400_000) })
  const smtp = await startSmtp(t, { port })
  await until(() => smtp.delivered.length === 1, 'the mail')
})

t.test('accounts take turns: an account with many invitations does not delay another', async (t) => {
  await db
    .insertInto('collaborations')
    .values([...pendingOf(ONE, 150, 900), ...pendingOf(TWO, 2, 60)])
    .execute()
  const smtp = await startSmtp(t)
  startSender(t, smtp.port)
  await until(() => smtp.delivered.length >= 6, 'six mails')
  t.strictSame(
    smtp.delivered.slice(0, 6).map(({ to }) => to[0]),
    [`${ONE}-0`, `${TWO}-0`, `${ONE}-1`, `${TWO}-1`, `${ONE}-2`, `${ONE}-3`].map((name) => `${name}@example.com`),
  )
})

t.test('two processes send each invitation once', async (t) => {
  const smtp = await startSmtp(t)
  const ids = await Promise.all(Array.from({ length: 12 }, (_, i) => invite(`user-${i}@example.com`)))
  const senders = [startSender(t, smtp.port), startSender(t, smtp.port), startSender(t, smtp.port)]
  await until(() => senders.flatMap(({ outcomes }) => outcomes).length >= ids.length, 'all mails')
  t.strictSame(smtp.delivered.map(({ to }) => to[0]).sort(), ids.map((_, i) => `user-${i}@example.com`).sort())
})

t.test('an invitation cancelled, or sent by another process, while it waits for its turn is not sent', async (t) => {
  const smtp = await startSmtp(t)
  const ids = []
  for (const name of ['first', 'cancelled', 'sent']) ids.push((await invite(`${name}@example.com`)).id)
  const release = hold(smtp)
  startSender(t, smtp.port)
  await until(() => smtp.held === 1, 'the first mail to be on its way')
  t.match(await api.call('DELETE', `/1.0/collaborations/${ids[1]!}`), { status: 200 })
  await db.updateTable('collaborations').set({ invited_at: new Date() }).where('id', '=', ids[2]!).execute()
  await invite('last@example.com')
  release()
  await until(() => smtp.delivered.some(({ to: [to] }) => to === 'last@example.com'), 'the last mail')
  t.strictSame(
    smtp.delivered.map(({ to: [to] }) => to),
    ['first@example.com', 'last@example.com'],
  )
})

t.test('a mail that needs STARTTLS is not sent to a server without it', async (t) => {
  const smtp = await startSmtp(t)
  const to = { to: EMAIL, subject: 'x', text: 'y' }
  const settings = { host: '127.0.0.1', port: smtp.port, credentials: undefined, from: FROM, invitationUrl: PAGE }
  await t.rejects(buildSmtp({ ...settings, tls: 'starttls' })(to, AbortSignal.timeout(10_000)))
  t.equal(smtp.delivered.length, 0)
  await buildSmtp({ ...settings, tls: 'optional' })(to, AbortSignal.timeout(10_000))
  t.equal(smtp.delivered.length, 1)
})

t.test('an invitation that was on its way when the sender stopped is sent after the next start', async (t) => {
  const smtp = await startSmtp(t)
  smtp.hold = new Promise(() => undefined)
  const { sender, outcomes } = startSender(t, smtp.port)
  const { id } = await invite()
  await until(() => smtp.held === 1, 'the mail to be on its way')
  let isStopped = false
  void sender.stop().then(() => {
    isStopped = true
  })
  await until(() => isStopped, 'the sender to stop before the mail server times out', 15_000)
  t.strictSame([outcomes, await invitedAt(id)], [[], null])
  smtp.hold = undefined
  startSender(t, smtp.port)
  await until(async () => (await invitedAt(id)) !== null, 'the mail')
})

t.test('a resend while the mail is on its way is sent too', async (t) => {
  const smtp = await startSmtp(t)
  const release = hold(smtp)
  startSender(t, smtp.port)
  const { id } = await invite()
  await until(() => smtp.held === 1, 'the mail to be on its way')
  t.match(await api.call('POST', `/1.0/collaborations/${id}/resend`), { status: 200 })
  release()
  await until(() => smtp.delivered.length === 2, 'both mails')
  await until(async () => (await invitedAt(id)) !== null, 'the record')
})

t.test('while the database refuses to record a sent mail, no mail is sent twice', async (t) => {
  const smtp = await startSmtp(t)
  const release = hold(smtp)
  const { log } = startSender(t, smtp.port)
  await invite()
  await until(() => smtp.held === 1, 'the mail to be on its way')
  await sql`create sequence refusals`.execute(db)
  await sql`create function refuse() returns trigger language plpgsql as $$
    begin perform nextval('refusals'); raise exception 'read-only'; end $$`.execute(db)
  await sql`create trigger refuse before update on collaborations for each row execute function refuse()`.execute(db)
  t.teardown(() => sql`drop trigger if exists refuse on collaborations`.execute(db))
  release()
  await until(() => smtp.delivered.length === 1 && warningsOf(log).length > 0, 'the failure to record it')
  await sql`alter table collaborations disable trigger user`.execute(db)
  await db.updateTable('collaborations').set({ send_at: null }).execute() // as after the time that a mail may take
  await sql`alter table collaborations enable trigger user`.execute(db)
  const refusals = async () =>
    (await sql<{ last_value: number }>`select last_value from refusals`.execute(db)).rows[0]!.last_value
  const before = await refusals()
  await until(async () => (await refusals()) > before, 'another attempt')
  t.equal(warningsOf(log).length, 1, 'one in a minute')
  t.equal(smtp.delivered.length, 1)
  await sql`drop trigger refuse on collaborations`.execute(db)
  await until(() => smtp.delivered.length === 2, 'the mail, once more')
})

t.test('names and addresses cannot add headers or recipients to a mail', async (t) => {
  const smtp = await startSmtp(t)
  startSender(t, smtp.port)
  const evil = 'X\r\nBcc: eve@example.com\r\n\r\nhello'
  await db.updateTable('accounts').set({ name: evil }).where('id', '=', ONE).execute()
  await setRow(db, 'users', ADA, { name: `Åda ${evil}` })
  const address = '"mary\\""@example.com'
  await invite(address)
  await until(() => smtp.delivered.length === 1, 'the mail')
  const [{ to, mail, raw }] = smtp.delivered as [(typeof smtp.delivered)[number]]
  t.strictSame(to, [address])
  t.equal(mail.subject, 'Åda X Bcc: eve@example.com hello invites you to the account X Bcc: eve@example.com hello')
  t.strictSame(
    mail.headers
      .map(({ key }) => key)
      .filter((key) => ['to', 'cc', 'bcc', 'from', 'subject'].includes(key))
      .sort(),
    ['from', 'subject', 'to'],
  )
  t.notMatch(raw, /^bcc:/im)
})

t.test('without a mail server an invitation waits, and its row says why, until there is one', async (t) => {
  const { sender, log } = startSender(t, undefined)
  const { id } = await invite()
  await until(async () => (await rowOf(id)).send_fault === 'IMDS_API_SMTP is not set', 'the reason')
  t.equal(await invitedAt(id), null)
  t.strictSame(log, [])
  await sender.stop()
  await setRow(db, 'collaborations', id, { inviter_id: null }) // the user was deleted
  const smtp = await startSmtp(t)
  startSender(t, smtp.port)
  await until(() => smtp.delivered.length === 1, 'the mail')
  t.match(smtp.delivered[0]!.mail.subject, /^Somebody invites you/)
  await until(async () => (await rowOf(id)).send_fault === null, 'the record')
})

t.test('imds-api signs in at the mail server by STARTTLS, and after a kill sends what was on its way', async (t) => {
  const directory = shortDirectory(t)
  const authority = await anAuthority(directory, 'mail')
  const credentials = { user: 'imds', password: 'a-password-of-mail' }
  const smtp = await startSmtp(t, { certificate: await authority.issue('mail'), credentials })
  const passwordFile = join(directory, 'password')
  writeFileSync(passwordFile, 'wrong\n')
  const release = hold(smtp)
  const first = await startImdsApi(t, {
    IMDS_API_SMTP: `smtp://imds@127.0.0.1:${smtp.port}`,
    IMDS_API_SMTP_PASSWORD_FILE: passwordFile,
    IMDS_API_MAIL_FROM: FROM,
    IMDS_API_INVITATION_URL: PAGE,
    NODE_EXTRA_CA_CERTS: authority.caFile,
    IMDS_API_LOG_LEVEL: 'debug',
  })
  t.match(await first.call('POST', 'collaborations', { email: EMAIL, role: 'admin' }), { status: 201 })
  await until(
    () => first.log.some(({ msg }) => msg.endsWith(': the mail server answers 535 to AUTH PLAIN')),
    'the refusal of the wrong password',
  )
  writeFileSync(passwordFile, `${credentials.password}\n`)
  await until(() => smtp.held === 1, 'the mail to be on its way')
  first.process.kill('SIGKILL')
  await until(() => first.process.signalCode !== null, 'the end')
  release()
  const database = await openDatabaseOf(first.env)
  t.teardown(() => database.close())
  await database.db.updateTable('collaborations').set({ send_at: null }).execute() // as after the time that a mail may take
  const second = await startProcess(t, first.env)
  const isCounted = async () => (await second.metrics()).includes('imds_api_invitations_total{result="sent"} 1\n')
  await until(isCounted, 'the mail of the second process')
  t.match(smtp.delivered.at(-1), {
    to: [EMAIL],
    isSecure: true,
    user: 'imds',
    mail: { subject: /^Ada Lovelace invites you/ },
  })
  for (const { log } of [first, second]) {
    const text = JSON.stringify(log)
    t.notMatch(text, '@')
    t.notMatch(text, credentials.password)
    t.notMatch(text, Buffer.from(`\0imds\0${credentials.password}`).toString('base64'))
  }
})
