/**
 * Requests of real clients, byte for byte as far as that is known (docs/clients.md). Other inputs are mutations of
 * them.
 */

const request = (line: string, headers: readonly string[], body = '') =>
  `${[line, ...headers].join('\r\n')}\r\n\r\n${body}`
const get = (path: string, ...headers: string[]) =>
  request(`GET ${path} HTTP/1.1`, ['Host: 169.254.169.254', ...headers])

const CLOUD_INIT = [
  'Accept-Encoding: gzip, deflate, br',
  'Accept: */*',
  'Connection: keep-alive',
  'User-Agent: Cloud-Init/25.1',
]
const TOKEN = 'X-aws-ec2-metadata-token: AQAAAKJ3fuzzfuzzfuzzfuzzfuzzfuzzfuzzfuzzfuzzfuzzfuzzfuzz=='

/** GETs that every served guest gets a 200 for. */
export const SERVED: readonly string[] = [
  get('/2009-04-04/meta-data/instance-id', ...CLOUD_INIT),
  get(
    '/2021-03-23/meta-data/',
    'User-Agent: python-requests/2.28.1',
    'Accept-Encoding: gzip, deflate',
    'Accept: */*',
    'Connection: keep-alive',
  ),
  get('/2021-03-23/meta-data/public-keys/0/openssh-key', ...CLOUD_INIT),
  get('/2021-03-23/user-data', ...CLOUD_INIT),
  get('/2021-03-23/meta-data/tags/instance/a:b@c', ...CLOUD_INIT),
  get('//latest/meta-data/hostname', 'Connection: close'), // AWS's JavaScript client
  get('/latest//meta-data/reservation-id', 'User-Agent: curl/7.88.1', 'Accept: */*'), // ec2-metadata
  get(
    '/latest/meta-data/placement/availability-zone/',
    'Accept-Encoding: identity',
    'User-Agent: aws-cli/2.9.19 Python/3.11.2',
  ),
  get(
    '/openstack/latest/user_data',
    'User-Agent: Ignition/2.14.0',
    'Accept-Encoding: identity',
    'Accept: application/vnd.coreos.ignition+json;version=3.3.0, */*;q=0.1',
  ),
  get(
    '/latest/user-data/',
    'Accept-Encoding: gzip;q=1.0,deflate;q=0.6,identity;q=0.3',
    'Accept: */*',
    'User-Agent: Ruby',
    'Connection: close',
  ), // facter
  get('/', 'Accept: */*', 'User-Agent: Ruby'), // ohai
  get('/2021-07-15/meta-data/network/interfaces/macs/', 'Accept: */*', 'User-Agent: Ruby'),
  get('/latest/meta-data/hostname?error_body=false', 'Accept: */*'), // systemd-imdsd
  get(
    '/2009-04-04/meta-data/local-hostname',
    'Accept-Encoding: identity',
    'User-Agent: Python-urllib/3.8',
    'Connection: close',
  ), // cloudbase-init
  'GET /latest/meta-data/instance-id HTTP/1.0\r\n\r\n',
  'GET http://169.254.169.254/latest/meta-data/mac HTTP/1.1\r\nHost: 169.254.169.254\r\nProxy-Connection: Keep-Alive\r\n\r\n',
]

/** Requests with tokens, other methods or bodies. */
export const OTHERS: readonly string[] = [
  request('PUT /latest/api/token HTTP/1.1', [
    'Host: 169.254.169.254',
    'Accept: */*',
    'X-aws-ec2-metadata-token-ttl-seconds: 21600',
  ]), // systemd, curl
  request('PUT /latest/api/token HTTP/1.1', [
    'x-aws-ec2-metadata-token-ttl-seconds: 21600',
    'Host: 169.254.169.254',
    'User-Agent: Boto3/1.26.27 md/Botocore#1.43.107',
    'Content-Length: 0',
  ]),
  request('PUT /latest/api/token HTTP/1.1', [
    'Accept-Encoding: gzip;q=1.0,deflate;q=0.6,identity;q=0.3',
    'Accept: */*',
    'User-Agent: Ruby',
    'X-aws-ec2-metadata-token-ttl-seconds: 100',
    'Connection: close',
    'Host: 169.254.169.254',
    'Content-Length: 0',
    'Content-Type: application/x-www-form-urlencoded',
  ]),
  request('PUT /latest/api/token HTTP/1.1', [
    'content-type: text/plain; charset=utf-8',
    'x-aws-ec2-metadata-token-ttl-seconds: 21600',
    'accept: */*',
    'host: 169.254.169.254',
    'content-length: 0',
  ]), // afterburn
  request(
    'PUT /latest/api/token HTTP/1.1',
    ['Host: 169.254.169.254', 'X-aws-ec2-metadata-token-ttl-seconds: 60', 'Transfer-Encoding: chunked'],
    '0\r\n\r\n',
  ),
  get(
    '/latest/meta-data/iam/security-credentials/',
    TOKEN,
    'User-Agent: aws-sdk-go-v2/1.17.1',
    'Accept-Encoding: gzip',
  ),
  get('/latest/meta-data/placement/region', TOKEN, 'User-Agent: aws-sdk-rust/1.0'),
  get('/latest/dynamic/instance-identity/document', TOKEN),
  request('HEAD /latest/meta-data/instance-id HTTP/1.1', [
    'Host: 169.254.169.254',
    'User-Agent: curl/7.88.1',
    'Accept: */*',
  ]),
  request('OPTIONS /latest/api/token HTTP/1.1', ['Host: 169.254.169.254']),
  request(
    'POST /latest/meta-data/ HTTP/1.1',
    ['Host: 169.254.169.254', 'Content-Type: application/json', 'Content-Length: 14', 'Expect: 100-continue'],
    '{"evil": true}',
  ),
  request(
    'GET /latest/meta-data/mac HTTP/1.1',
    ['Host: 169.254.169.254', 'Transfer-Encoding: chunked', 'Trailer: X-Forwarded-For'],
    '5\r\nhello\r\n0\r\nX-Forwarded-For: 127.1.0.1\r\n\r\n',
  ),
]

/** All requests. */
export const REAL: readonly string[] = [...SERVED, ...OTHERS]

/** The target of a request line. */
export function targetOf(bytes: string): string {
  return bytes.split(' ', 2)[1] ?? ''
}
