/** The mail of an invitation: plain text. Names come from users, so they are reduced to one short line. */

/**
 * What an invitation says. `inviter`: the name. `hasUser`: true if a user has this address.
 */
export interface Invitation {
  readonly id: string
  readonly email: string
  readonly account: { readonly id: string; readonly name: string }
  readonly inviter: string
  readonly hasUser: boolean
}
export interface Mail {
  readonly to: string
  readonly subject: string
  readonly text: string
}

const MAX_NAME_LENGTH = 80

/** Composes the mail. `invitationUrl`: the page on which people answer invitations. */
export function composeInvitation({ id, email, account, inviter, hasUser }: Invitation, invitationUrl: string): Mail {
  const link = new URL(invitationUrl)
  link.searchParams.set('collaboration', id)
  const [who, accountName] = [toLine(inviter), toLine(account.name)]
  return {
    to: email,
    subject: `${who} invites you to the account ${accountName}`,
    text:
      [
        `${who} invites you to work in the account "${accountName}" (${account.id}).`,
        ...(hasUser ? [] : ['There is no user with this address yet: sign up with it first.']),
        `To accept or reject, sign in as the user with the e-mail address ${email}, and open:`,
        link.href,
        'Nothing changes until you accept. If you do not know the sender, ignore this mail.',
      ].join('\n\n') + '\n',
  }
}

/** A name without control characters, line breaks and characters that change the direction of text. */
function toLine(name: string): string {
  const line = name.replace(/[\p{C}\p{Z}]+/gu, ' ').trim()
  return line.length > MAX_NAME_LENGTH ? `${line.slice(0, MAX_NAME_LENGTH).toWellFormed()}...` : line
}
