/**
 * Signing in with a client that nobody here wrote: Debian's requests-oauthlib uses all grants, with one-time passwords
 * from Debian's oathtool. The token requests as fog and Go's x/oauth2 write them. Two libraries for Node.js.
 */
import * as oauth from 'oauth4webapi'
import * as openid from 'openid-client'
import t from 'tap'
import {
  ADA,
  APPLICATION,
  aRegion,
  CLIENT_OF,
  GRACE,
  ONE,
  secretOf,
  TOTP_SECRET,
  TWO,
  withFiles,
} from '../support/fixtures/region.ts'
import { startImdsApi } from '../support/programs/api.ts'
import { must } from '../support/programs/processes.ts'
import { without } from '../support/packages.ts'

/** Debian's packages are for Debian's Python. */
const PYTHON = '/usr/bin/python3'
const skip = without('python3-requests-oauthlib', 'oathtool')

/**
 * The user without two-factor authentication. A code is accepted once, so each program signs in as a user of its own.
 */
const JOAN = 'usr-joan3'

const PRELUDE = `
import os, subprocess, sys
os.environ['OAUTHLIB_INSECURE_TRANSPORT'] = '1' # plain HTTP
import requests
from oauthlib.oauth2 import BackendApplicationClient, InvalidClientError, InvalidGrantError, LegacyApplicationClient
from requests_oauthlib import OAuth2Session
base_url, client, client_secret, application, application_secret, user, password, totp_secret = sys.argv[1:]
url = base_url + '/token'
code = lambda when: subprocess.run(['oathtool', '--totp', '-b', totp_secret, '-N', when], capture_output=True, check=True).stdout.decode().strip()
new_session = lambda: OAuth2Session(client=LegacyApplicationClient(client_id=application))
def sign_in(password, **more):
    session = new_session()
    return session, session.fetch_token(url, username=user, password=password, auth=(application, application_secret), **more)
`

const OAUTHLIB = `${PRELUDE}
backend = OAuth2Session(client=BackendApplicationClient(client_id=client))
print('client_credentials', sorted(backend.fetch_token(url, auth=(client, client_secret)).keys()))

try: sign_in(password)
except InvalidClientError as error: print('no code:', error.description)
try: sign_in('wrong password')
except InvalidClientError as error: print('wrong:', error.description)

session, token = sign_in(password, headers={'X-Service-OTP': code('now')})
print('header:', sorted(token.keys()), token['scope'])
print(session.get(base_url + '/1.0/user').json()['email_address'])
print(session.get(base_url + '/1.0/servers').status_code, session.get(base_url + '/1.0/servers?account_id=${ONE}').json())

session, token = sign_in(password + '+' + code('30 seconds'))
print('plus:', session.get(base_url + '/1.0/user').status_code)

refreshed = session.refresh_token(url, refresh_token=token['refresh_token'], auth=(application, application_secret))
print('refresh:', refreshed['refresh_token'] != token['refresh_token'], session.get(base_url + '/1.0/user').status_code)
try: new_session().refresh_token(url, refresh_token='x', auth=(application, application_secret))
except InvalidGrantError as error: print('invalid_grant')
`

const FORMS = `${PRELUDE}
def show(name, answer): print(name, answer.status_code, answer.json().get('scope') or answer.json()['error'], answer.headers.get('X-Brightbox-OTP'))
auth = (application, application_secret)
grant = {'grant_type': 'password', 'username': user, 'password': password}
show('fog without a code', requests.post(url, json=grant, auth=auth))
now = code('now')
fog = requests.post(url, json={**grant, 'password': password + '+' + now}, headers={'X-Brightbox-OTP': now}, auth=auth)
show('fog', fog)
show('fog again', requests.post(url, json={**grant, 'password': password + '+' + now}, headers={'X-Brightbox-OTP': now}, auth=auth))
show('fog refreshes', requests.post(url, json={'grant_type': 'refresh_token', 'client_id': application, 'refresh_token': fog.json()['refresh_token']}, auth=auth))
go = {'grant_type': 'password', 'username': 'Joan@example.com', 'password': '${secretOf(JOAN)}', 'scope': 'infrastructure'}
show('Go', requests.post(url + '/', data=go, auth=auth))
show('Go, a client', requests.post(url + '/', data={'grant_type': 'client_credentials', 'scope': 'infrastructure orbit'}, auth=(client, client_secret)))
`

t.test('users sign in with clients that nobody here wrote', { skip }, async (t) => {
  const [ada, grace] = aRegion().users
  const region = aRegion({
    users: [
      ...[ada!, grace!].map((user) => withFiles(user, `${user.id}.password`, `${user.id}.totp`)),
      { id: JOAN, name: 'Joan', email_address: 'joan@example.com', password_file: `${JOAN}.password` },
    ],
    applications: [{ id: APPLICATION, account: TWO, name: 'Dashboard', secret_file: `${APPLICATION}.secret` }],
  })
  const api = await startImdsApi(t, {}, region)
  const client = CLIENT_OF[ONE]
  const lines = async (program: string, user: string) => {
    const args = [
      api.baseUrl,
      client,
      secretOf(client),
      APPLICATION,
      secretOf(APPLICATION),
      user,
      secretOf(user),
      TOTP_SECRET,
    ]
    return (await must([PYTHON, '-c', program, ...args])).toString().trim().split('\n')
  }

  await t.test('the token requests of fog and of Go get tokens; fog is told to ask for a code', async (t) => {
    t.same(await lines(FORMS, GRACE), [
      'fog without a code 401 invalid_client required',
      'fog 200 infrastructure, orbit None',
      'fog again 401 invalid_client required',
      'fog refreshes 200 infrastructure, orbit None',
      'Go 200 infrastructure None',
      'Go, a client 200 infrastructure, orbit None',
    ])
  })

  await t.test('requests-oauthlib uses all grants, with a code in a header and behind the password', async (t) => {
    t.same(await lines(OAUTHLIB, ADA), [
      "client_credentials ['access_token', 'expires_at', 'expires_in', 'scope', 'token_type']",
      'no code: a one-time password is required',
      'wrong: the username or the password is wrong',
      "header: ['access_token', 'expires_at', 'expires_in', 'refresh_token', 'scope', 'token_type'] ['infrastructure,', 'orbit']",
      'ada@example.com',
      '400 []',
      'plus: 200',
      'refresh: True 200',
      'invalid_grant',
    ])
  })
})

t.test('RFC 6749: oauth4webapi and openid-client, which encode the id and the secret, get tokens', async (t) => {
  const api = await startImdsApi(t)
  const id = CLIENT_OF[ONE]
  const server = { issuer: api.baseUrl, token_endpoint: `${api.baseUrl}/token` }
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- marked so that nobody uses it beyond tests
  const insecure = { [oauth.allowInsecureRequests]: true }

  const sent = oauth.ClientSecretBasic(secretOf(id))
  const response = await oauth.clientCredentialsGrantRequest(server, { client_id: id }, sent, {}, insecure)
  const token = await oauth.processClientCredentialsResponse(server, { client_id: id }, response)
  t.equal(token.token_type, 'bearer')

  const configuration = new openid.Configuration(server, id, {}, openid.ClientSecretBasic(secretOf(id)))
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- as above
  openid.allowInsecureRequests(configuration)
  t.equal((await openid.clientCredentialsGrant(configuration)).token_type, 'bearer')
})

t.test('RFC 8414: openid-client finds the token endpoint by itself, and sends the secret in the body', async (t) => {
  const api = await startImdsApi(t)
  const id = CLIENT_OF[ONE]
  const configuration = await openid.discovery(new URL(api.baseUrl), id, secretOf(id), undefined, {
    algorithm: 'oauth2',
    // eslint-disable-next-line @typescript-eslint/no-deprecated -- as above
    execute: [openid.allowInsecureRequests],
  })
  t.match(configuration.serverMetadata(), {
    issuer: api.baseUrl,
    grant_types_supported: ['client_credentials', 'password', 'refresh_token'],
    scopes_supported: ['infrastructure', 'orbit'],
  })
  t.equal((await openid.clientCredentialsGrant(configuration)).token_type, 'bearer')
})
