/** The grant password: a user signs in with an application, which then acts for the user. */
import Type from 'typebox'
import { FairQueue, type FairQueueLimits } from '../../../limits/fair-queue.ts'
import type { FailureSubject } from '../../../limits/failure-limit.ts'
import { confirmSignIn, findUser, lockApplication } from '../../changes/sign-ins.ts'
import { inTransaction } from '../../database/transaction.ts'
import { grantScopes } from '../../model/scopes.ts'
import { splitCode, stepOfCode } from '../one-time-password.ts'
import { verifyPassword } from '../password.ts'
import {
  BUSY,
  invalid,
  issueForFamily,
  refuseBeyondFailures,
  WRONG_CLIENT,
  WRONG_SCOPE,
  WrongCode,
  WrongCredentials,
} from './grant.ts'
import type { BuildParts, Grant, GrantedTokens, GrantType } from './grant.ts'

/** A password check takes 32 MiB and about 0.2 s of a core, so a full queue lasts some seconds. */
const PASSWORD_CHECKS: FairQueueLimits = { all: { atOnce: 2, maxWaiting: 32 } }

const WRONG_PASSWORD = 'the username or the password is wrong'
const NO_CODE = 'a one-time password is required'
const WRONG_CODE = 'the one-time password is wrong, was used before, or is older than one that was used'

export const PASSWORD: GrantType = {
  name: 'password',
  title: 'PasswordGrant',
  fields: {
    username: Type.String({
      maxLength: 254,
      format: 'line',
      description: 'The id or the e-mail address of the user.',
    }),
    password: Type.String(),
  },
  build: buildPassword,
}

/** It has a queue of its own, for the checks. */
function buildPassword(parts: BuildParts): Grant {
  const { db, families, failures, now } = parts
  const checks = new FairQueue(PASSWORD_CHECKS)
  return async (request) => {
    const { id: applicationId, accountId, scopes: allowed } = await parts.authenticate(request, 'application')
    const { address, code: sentCode, body } = request
    const { username, password: presented, scope } = body
    if (username === undefined || presented === undefined)
      throw invalid('invalid_request', 'username and password are required')
    const scopes = grantScopes(scope, allowed)
    if (scopes === undefined) throw WRONG_SCOPE
    const name = username.toLowerCase()
    const user = await findUser(db, name)
    // the id and the e-mail address of a user are one subject
    const subject: FailureSubject = { kind: 'user', name: user?.id ?? name }
    refuseBeyondFailures(failures, subject, address)
    const failure = () => failures.countFailure(subject, address, user !== undefined)
    const check = async (): Promise<GrantedTokens> => {
      // again, so guesses that were sent in parallel exceed the limit by one at most
      refuseBeyondFailures(failures, subject, address)
      const secret = user?.totp_secret ?? undefined
      const hash = user?.password_hash ?? undefined
      const split = splitCode(presented, sentCode)
      const { password, code } = secret === undefined ? { password: presented, code: undefined } : split
      const isRight = await verifyPassword(password, hash) // takes as long for an unknown user
      if (!isRight && sentCode === undefined && split.code !== undefined) {
        // the password may end like a code; takes as long for every user
        if ((await verifyPassword(presented, hash)) && secret !== undefined) throw new WrongCode(NO_CODE)
      }
      if (user === undefined || !isRight) throw new WrongCredentials(WRONG_PASSWORD, failure())
      // not a failure: the client now asks the user for the code
      if (secret !== undefined && code === undefined) throw new WrongCode(NO_CODE)
      const step = secret === undefined || code === undefined ? undefined : stepOfCode(secret, code, now())
      if (secret !== undefined && step === undefined) throw new WrongCode(WRONG_CODE, failure())
      const granted = await inTransaction(db, async (tx) => {
        if (!(await confirmSignIn(tx, user, step))) return undefined
        if (!(await lockApplication(tx, applicationId))) return 'no application' // deleted while the password was checked
        const { familyId, refreshToken } = await families.begin(tx, applicationId, user.id, scopes)
        return issueForFamily(tx, parts, familyId, refreshToken, scopes)
      })
      if (granted === undefined) {
        if (secret === undefined) throw new WrongCredentials(WRONG_PASSWORD, failure())
        throw new WrongCode(WRONG_CODE, failure())
      }
      failures.recordSuccess(subject, address)
      if (granted === 'no application') throw new WrongCredentials(WRONG_CLIENT)
      return granted
    }
    const granted = await checks.run({ key: accountId, caller: subject.name }, check)
    if (granted === undefined) throw BUSY
    return granted
  }
}
