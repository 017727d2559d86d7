/** Collaborations: invitations, the account's and the user's side, every transition, and the access that follows. */
import t from 'tap'
import { COLLABORATION_STATES, type CollaborationStatus } from '../../src/imds-api/model/collaborations.ts'
import { ADA, ADAS_KEY, aRegion, GRACE, MARY, MARYS_KEY, ONE, TWO, withMary } from '../support/fixtures/region.ts'
import { collaboration, TIME } from '../support/fixtures/representations.ts'
import { anApi, type ApiAnswer, apply, rowOf, setRow } from '../support/programs/api.ts'

const region = withMary()
const api = await anApi(t, { region })
const { db } = api.database
const [ada, grace, mary] = [await api.userToken(ADA), await api.userToken(GRACE), await api.userToken(MARY)]
const { email_address: email } = region.users.find(({ id }) => id === MARY)!

interface Member {
  readonly id: string
  readonly status: CollaborationStatus
}
const member = ({ body }: ApiAnswer) => body as Member
const idsOf = ({ body }: ApiAnswer) => (body as readonly Member[]).map(({ id }) => id)
const invite = (address: string = email, account: typeof ONE | typeof TWO = ONE) =>
  api.call('POST', '/1.0/collaborations', { email: address, role: 'admin' }, account)

/** The requests that change a collaboration: Mary's, and those of the API client. */
const REQUESTS = {
  accept: (id: string) => api.callWith(mary, 'POST', `/1.0/user/collaborations/${id}/accept`),
  reject: (id: string) => api.callWith(mary, 'POST', `/1.0/user/collaborations/${id}/reject`),
  leave: (id: string) => api.callWith(mary, 'DELETE', `/1.0/user/collaborations/${id}`),
  resend: (id: string) => api.call('POST', `/1.0/collaborations/${id}/resend`),
  remove: (id: string) => api.call('DELETE', `/1.0/collaborations/${id}`),
}
/** Which of them bring a new invitation into each state. */
const INTO: Readonly<Record<CollaborationStatus, readonly (keyof typeof REQUESTS)[]>> = {
  pending: [],
  accepted: ['accept'],
  rejected: ['reject'],
  cancelled: ['remove'],
  ended: ['accept', 'remove'],
}

async function inState(status: CollaborationStatus): Promise<string> {
  await db.deleteFrom('collaborations').where('account_id', '=', ONE).execute()
  const { id } = member(await invite())
  for (const request of INTO[status]) await REQUESTS[request](id)
  return id
}

t.beforeEach(async () => {
  await db.deleteFrom('collaborations').where('account_id', '=', ONE).execute()
})

t.test('each state has every field of the API, on the side of the account and of the user', async (t) => {
  const expected = {
    pending: { user: null, started_at: null, finished_at: null },
    accepted: { user: MARY, started_at: TIME, finished_at: null },
    rejected: { user: null, started_at: null, finished_at: TIME },
    cancelled: { user: null, started_at: null, finished_at: TIME },
    ended: { user: MARY, started_at: TIME, finished_at: TIME },
  }
  for (const status of COLLABORATION_STATES) {
    const id = await inState(status)
    for (const [side, answers] of [
      [
        'collaborations',
        [await api.call('GET', '/1.0/collaborations'), await api.call('GET', `/1.0/collaborations/${id}`)],
      ],
      [
        'user/collaborations',
        [
          await api.callWith(mary, 'GET', '/1.0/user/collaborations'),
          await api.callWith(mary, 'GET', `/1.0/user/collaborations/${id}`),
        ],
      ],
    ] as const) {
      for (const answer of answers) {
        const body = Array.isArray(answer.body) ? (answer.body as object[])[0] : answer.body
        const fields = collaboration(side, id, { account: ONE, inviter: ADA, email, status, ...expected[status] })
        t.match({ status: answer.status, body }, { status: 200, body: fields }, `${side} ${status}`)
        t.strictSame(Object.keys(body as object).sort(), Object.keys(fields).sort())
      }
    }
  }
})

t.test('a finished collaboration shows both sides what they saw of each other when it finished', async (t) => {
  const users = (id: string) => db.updateTable('users').where('id', '=', id)
  const accounts = db.updateTable('accounts').where('id', '=', ONE)
  const both = async (id: string) => {
    const [account, user] = [
      await api.call('GET', `/1.0/collaborations/${id}`),
      await api.callWith(mary, 'GET', `/1.0/user/collaborations/${id}`),
    ]
    return [account.body, user.body] as readonly object[]
  }
  for (const [status, names] of Object.entries({ rejected: null, cancelled: null, ended: { name: 'Mary Jackson' } })) {
    const id = await inState(status as CollaborationStatus)
    const before = await both(id)
    for (const one of before)
      t.match(one, { user: names, account: { name: aRegion().accounts[0]!.name }, inviter: { name: 'Ada Lovelace' } })
    await users(MARY)
      .set({ name: 'Mary Winston', totp_secret: Buffer.from('secret') as never })
      .execute()
    await users(ADA).set({ name: 'Ada King' }).execute()
    await accounts.set({ name: 'changed' }).execute()
    t.strictSame(await both(id), before, status)
    const list = await api.callWith(mary, 'GET', '/1.0/user/collaborations')
    t.strictSame(list.body, [before[1]], 'in the list too')
    await users(MARY).set({ name: 'Mary Jackson', totp_secret: null }).execute()
    await users(ADA).set({ name: 'Ada Lovelace' }).execute()
    await accounts.set({ name: aRegion().accounts[0]!.name }).execute()
  }
})

t.test('the event of a rejection names no user', async (t) => {
  const id = await inState('rejected')
  const { body } = await api.call('GET', `/1.0/events?resource_id=${id}`)
  const [last] = body as readonly { message: string }[]
  t.match(last!.message, ' by the invited person: ')
  t.notMatch(JSON.stringify(body), new RegExp(MARY))
})

t.test('every transition of the API is possible, and any other is refused and changes nothing', async (t) => {
  const possible = [
    'pending accept accepted',
    'pending reject rejected',
    'pending resend pending',
    'pending remove cancelled',
    'accepted leave ended',
    'accepted remove ended',
  ]
  for (const from of COLLABORATION_STATES) {
    for (const [name, request] of Object.entries(REQUESTS)) {
      const id = await inState(from)
      const answer = await request(id)
      const { status } = member(await api.call('GET', `/1.0/collaborations/${id}`))
      const to = possible.find((line) => line.startsWith(`${from} ${name} `))?.split(' ')[2]
      if (to === undefined)
        t.match(
          { answer, status },
          { answer: { status: 409, body: { error_name: 'resource_conflict' } }, status: from },
          `${from} ${name}`,
        )
      else
        t.match(
          { answer, status },
          { answer: { status: 200, body: { id, status: to } }, status: to },
          `${from} ${name}`,
        )
    }
  }
})

t.test(
  "an invitation is in the name of the user who sends it, or of the owner of an API client's account",
  async (t) => {
    t.match(await invite(), { status: 201, body: { status: 'pending', email, inviter: { id: ADA } } })
    t.match(await api.callWith(ada, 'POST', `/1.0/collaborations?account_id=${TWO}`, { email, role: 'admin' }), {
      status: 201,
      body: { account: { id: TWO }, inviter: { id: ADA } },
    })
    await db.deleteFrom('collaborations').where('email', '=', email).execute()
    t.match(await invite(email, TWO), { status: 201, body: { inviter: { id: GRACE } } })
    await db.deleteFrom('collaborations').where('email', '=', email).execute()
  },
)

t.test('an address that is invited or has access cannot be invited again, in any case', async (t) => {
  const { id } = member(await invite())
  for (const address of [email, email.toUpperCase()])
    t.match(await invite(address), {
      status: 409,
      body: { errors: [`${address} has the pending collaboration ${id} already`] },
    })
  await REQUESTS.accept(id)
  t.match(await invite(), { status: 409, body: { errors: [`${email} has the accepted collaboration ${id} already`] } })
  await setRow(db, 'collaborations', id, { email: 'other@example.com' })
  t.match(
    await invite(),
    { status: 409, body: { errors: [`${email} has access to the account already`] } },
    'a member by another address',
  )
  t.match(
    await invite('ADA@example.com'),
    { status: 409, body: { errors: ['ADA@example.com has access to the account already'] } },
    'the owner',
  )
  t.equal((await invite(email, TWO)).status, 201, 'another account')
  await REQUESTS.remove(id)
  t.equal((await invite()).status, 201, 'after the end')
  await db.deleteFrom('collaborations').where('email', '=', email).execute()
})

t.test('of invitations of one address at the same time one is created', async (t) => {
  const answers = await Promise.all(
    Array.from({ length: 8 }, (_, i) => invite(i % 2 === 0 ? email : email.toUpperCase())),
  )
  t.strictSame(answers.map(({ status }) => status).sort(), [201, ...Array.from({ length: 7 }, () => 409)])
})

t.test('an account has at most 100 invitations that are pending or younger than an hour', async (t) => {
  const old = Array.from({ length: 98 }, (_, i) => ({
    id: `col-z${String(i).padStart(4, '0')}`,
    account_id: ONE,
    user_id: null,
    inviter_id: ADA,
    email: `user-${i}@example.com`,
    role: 'admin' as const,
    status: 'pending' as const,
    created_at: new Date(Date.now() - 3_700_000),
    started_at: null,
    finished_at: null,
  }))
  await db.insertInto('collaborations').values(old).execute()
  const answers = await Promise.all(Array.from({ length: 4 }, (_, i) => invite(`new-${i}@example.com`)))
  t.strictSame(answers.map(({ status }) => status).sort(), [201, 201, 403, 403])
  const refused = {
    status: 403,
    body: {
      error_name: 'account_limit_reached',
      errors: ['the account has 100 invitations that are pending or younger than an hour: cancel old ones, or wait'],
    },
  }
  t.match(
    answers.find(({ status }) => status === 403),
    refused,
  )
  t.equal((await invite(email, TWO)).status, 201, 'another account')
  await REQUESTS.remove(old[0]!.id)
  const { id } = member(await invite())
  t.ok(id, 'in place of an old one')
  await REQUESTS.remove(id)
  t.match(await invite(), refused, 'in place of a new one')
  await db.deleteFrom('collaborations').where('account_id', '=', TWO).execute()
})

t.test('an invitation is sent again at most 5 times in an hour', async (t) => {
  const { id } = member(await invite())
  const other = member(await invite('other@example.com'))
  const answers = await Promise.all(Array.from({ length: 7 }, () => REQUESTS.resend(id)))
  t.strictSame(answers.map(({ status }) => status).sort(), [200, 200, 200, 200, 200, 429, 429])
  t.match(
    answers.find(({ status }) => status === 429),
    {
      body: {
        error_name: 'too_many_requests',
        errors: [`${id} can be sent again 5 times in an hour: try again later`],
      },
    },
  )
  const { headers } = answers.find(({ status }) => status === 429)!
  t.ok(
    Number(headers['retry-after']) > 3_500 && Number(headers['retry-after']) <= 3_600,
    String(headers['retry-after']),
  )
  t.match(headers, {
    'ratelimit-policy': '"resends";q=5;w=3600',
    ratelimit: `"resends";r=0;t=${String(headers['retry-after'])}`,
  })
  t.match(await REQUESTS.resend(other.id), { status: 200, headers: { ratelimit: '"resends";r=4' } })
  const { resends } = await rowOf(db, 'collaborations', id)
  await setRow(db, 'collaborations', id, { resends: [new Date(Date.now() - 3_601_000), ...resends.slice(1)] })
  t.strictSame([(await REQUESTS.resend(id)).status, (await REQUESTS.resend(id)).status], [200, 429])
  await REQUESTS.remove(id)
  t.equal((await REQUESTS.resend(id)).status, 409)
})

t.test('a user sees only their own invitations, and needs no account', async (t) => {
  const { id } = member(await invite())
  t.strictSame(idsOf(await api.callWith(mary, 'GET', '/1.0/user/collaborations')), [id])
  t.strictSame(idsOf(await api.callWith(grace, 'GET', '/1.0/user/collaborations')), [])
  for (const [method, path] of [
    ['GET', id],
    ['POST', `${id}/accept`],
    ['POST', `${id}/reject`],
    ['DELETE', id],
    ['GET', 'col-abcde'],
  ] as const) {
    t.match(await api.callWith(grace, method, `/1.0/user/collaborations/${path}`), { status: 404 }, `${method} ${path}`)
  }
  t.equal(member(await api.call('GET', `/1.0/collaborations/${id}`)).status, 'pending')
})

t.test('an address that is not verified has no invitations', async (t) => {
  const { id } = member(await invite())
  await setRow(db, 'users', MARY, { email_verified: false })
  t.strictSame(idsOf(await api.callWith(mary, 'GET', '/1.0/user/collaborations')), [])
  t.equal((await REQUESTS.accept(id)).status, 404)
  await setRow(db, 'users', MARY, { email_verified: true })
  t.equal((await REQUESTS.accept(id)).status, 200)
})

t.test('an accepted collaboration gives access, and the key to new servers; its end takes both at once', async (t) => {
  const access = async () => [
    (await api.callWith(mary, 'GET', `/1.0/servers?account_id=${ONE}`)).status,
    (await api.callWith(mary, 'POST', `/1.0/server_groups?account_id=${ONE}`, {})).status,
    ((await api.callWith(mary, 'GET', '/1.0/user')).body as { accounts: { id: string }[] }).accounts.map(
      ({ id }) => id,
    ),
    ((await api.call('GET', '/1.0/account')).body as { users: { id: string }[] }).users.some(({ id }) => id === MARY),
  ]
  const keysOfNewServer = async () => {
    const { id } = (await api.call('POST', '/1.0/servers', { image: 'img-deb12' })).body as { id: string }
    return (
      await db.selectFrom('server_keys').select('key').where('server_id', '=', id).orderBy('user_id').execute()
    ).map(({ key }) => key)
  }
  for (const end of ['remove', 'leave'] as const) {
    const { id } = member(await invite())
    t.strictSame([await access(), await keysOfNewServer()], [[404, 404, [], false], [ADAS_KEY]], 'invited')
    await REQUESTS.accept(id)
    t.strictSame(
      [await access(), await keysOfNewServer()],
      [
        [200, 202, [ONE], true],
        [ADAS_KEY, MARYS_KEY],
      ],
      'accepted',
    )
    await REQUESTS[end](id)
    t.strictSame([await access(), await keysOfNewServer()], [[404, 404, [], false], [ADAS_KEY]], end)
  }
})

t.test('a user who has access by another way cannot accept', async (t) => {
  const { id } = member(await invite())
  await setRow(db, 'accounts', ONE, { owner_id: MARY })
  t.match(await REQUESTS.accept(id), { status: 409, body: { errors: [`you have access to ${ONE} already`] } })
  await setRow(db, 'accounts', ONE, { owner_id: ADA })
  t.equal((await REQUESTS.reject(id)).status, 200)
})

t.test('an invitee gets a user when apply brings one, and then finds the invitation', async (t) => {
  const { id } = member(await invite('new@example.com'))
  await apply(
    api.database,
    withMary({ users: [...region.users, { id: 'usr-new04', name: 'New', email_address: 'New@Example.com' }] }),
  )
  const token = await api.userToken('usr-new04')
  t.strictSame(idsOf(await api.callWith(token, 'GET', '/1.0/user/collaborations')), [id])
  t.match(await api.callWith(token, 'POST', `/1.0/user/collaborations/${id}/accept`), {
    status: 200,
    body: { status: 'accepted', user: { id: 'usr-new04' } },
  })
  t.equal((await api.callWith(token, 'GET', `/1.0/servers?account_id=${ONE}`)).status, 200)
})

t.test('a collaborator of the region file has access, also one who is invited already', async (t) => {
  const {
    accounts: [one, two],
  } = aRegion()
  // she has rejected and ended some, which the file would respect
  await db.deleteFrom('collaborations').where('account_id', '=', ONE).execute()
  const { id } = member(await invite(email.toUpperCase()))
  t.strictSame(await apply(api.database, withMary({ accounts: [{ ...one!, collaborators: [MARY] }, two!] })), [
    `~ collaboration of ${MARY} in ${ONE}: pending -> accepted`,
  ])
  t.match(await api.callWith(mary, 'GET', '/1.0/user/collaborations'), {
    body: [{ id, status: 'accepted', user: { id: MARY }, started_at: TIME }],
  })
  t.strictSame(await apply(api.database, withMary({ accounts: [{ ...one!, collaborators: [MARY] }, two!] })), [])
  t.strictSame(await apply(api.database, region), [], 'the file leaves it out: it stays')
})
