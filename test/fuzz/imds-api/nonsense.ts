/** What mutations put into requests. Texts of `words` have no spaces. */

const words = (text: string) => text.split(' ')

/** A text that no response may have: it is the value of fields that no request sets. */
export const MARK = 'zqxj'
/** Fields that no operation takes. Some are columns of the database. */
export const UNSETTABLE = words(
  'id url resource_type account account_id created_at updated_at revoked_at deleted_at owner owner_id issuer secret ' +
    'secret_sha256 revision fqdn hostname public_ip ram_limit limits kid __proto__',
)

/** Values that a field does not expect. */
export const VALUES: readonly unknown[] = [
  ...[null, true, false, 0, -1, 0.5, 1e21, 2 ** 31, 2 ** 53, [], {}, [[]], [null], { id: null }, ' ', '\r\n'],
  ...['\0', 'a\0b', '\ud800', '\udfff x', '\u202eabc', '\ufeff', '\u2028', '\x1b[31m', '\x7f', 'e\u0301', 'ﬃ'],
  ...["'; drop table servers --", 'x'.repeat(256), 'ü'.repeat(300), 'x'.repeat(70_000), '\u0301'.repeat(1_000)],
  ...words(' 0 -1 NaN null true __proto__ constructor ${7*7} ../../etc/passwd %00 \\u0000 2026-02-30T25:61:00Z id'),
  ...words('acc-tris0 srv-zzzz9 srv- SRV-ABCDE srv-12345678'),
  ...[Array(1_000).fill('x'), Array(3_000).fill(null), Object.fromEntries(Array(60).entries())],
]
/** Names of members that no body has. */
export const NAMES = [
  ...words('__proto__ constructor prototype toString hasOwnProperty length id status name'),
  ...['', '\0', '\ud800', 'x'.repeat(300)],
]
/** JSON text in the place of a value: what JSON.stringify never makes. */
export const RAW = [
  ...words('1e999 -0 1E-400 0.1e1 123456789012345678901234567890 "\\u0000" "\\ud83d" "\\u00e9" "\t" "\\x41"'),
  ...words('01 +1 .5 NaN \'x\' // {"a":1,"a":2} {"a":1,} [1,,2] [ { ]'),
  ...['['.repeat(99) + ']'.repeat(99), '['.repeat(500) + ']'.repeat(500), '{"a":'.repeat(150) + '1' + '}'.repeat(150)],
]
/** Whole bodies. */
export const BODIES = words(' null [] "" 0 {} {}{} \xff \0 a=b&a=c %=%&&')

/** Parts of a path and a query. */
export const PIECES = [
  ...words('/ // /./ /../ .. %2f %2F %5c \\ %2e%2e %252e % %2 %zz %00 %0a %20 %c0%af %ff %ed%a0%80 %e2%80%ae \xff'),
  ...words('# & = ;a=b : @ * + [] [a] ~ $ | " \' <x> {id} wait __proto__ null -1'),
  ...['x'.repeat(120), 'x'.repeat(3_000)],
]
/** Ends of a path, and paths that the document does not have. */
export const ENDS = words('/ // /x /.. /%2e%2e/servers .json %00 ?')
export const VERSIONS = words(' /1.1 /1.0/ /1%2e0 //1.0 /1.0/..')
export const UNLISTED = words(
  '/ /docs /docs/ /docs/../../etc/passwd /docs/static/..%2f..%2fpackage.json /1.0 /1.0/ ' +
    '/1.0/openapi.json /1.0/load_balancers /1.0/volumes/vol-12345 /1.0/firewall_rules/x/y /oidc /oidc/acc-tris0 ' +
    '/metrics /livez /favicon.ico /.well-known/openid-configuration *',
)
export const QUERIES = [
  ...words('limit=0 limit=-1 limit=1e3 limit=1001 limit= limit=1&limit=2 limit[]=1 limit=99999999999999999999'),
  ...words('after= after=x after=%00 after=bnVsbA after=WzFd after=now after=1-1 after=9-99999999999999999999'),
  ...words('name=%00 name= name=% name=a&name=b'),
  ...words('status= status=x status[]=a tag.=x tag.a=%00 tag.__proto__=x tag=x server_group=x server_group=grp-zzzz9'),
  ...words('account_id= account_id=acc-tris0 account_id=acc-once0&account_id=acc-twin0 account_id[]=acc-tris0'),
  ...words('__proto__=x constructor=x timeout=0 timeout=1e9 = &&&'),
  ...[`name=${'x'.repeat(1_100)}`, 'a'.repeat(2_000)],
  Array.from({ length: 12 }, (_, n) => `tag.k${n}=v`).join('&'),
]
export const METHODS = words('GET HEAD POST PUT DELETE PATCH OPTIONS TRACE PROPFIND LOCK QUERY M-SEARCH')
export const HEADERS: readonly (readonly [name: string, ...values: string[]])[] = [
  ['Content-Type', '', 'text/plain', 'application/JSON', 'application/json; charset=utf-16', 'application/json;;', '/'],
  [
    'Content-Type',
    'multipart/form-data; boundary=x',
    'application/x-www-form-urlencoded',
    'application/merge-patch+json',
  ],
  ['Content-Encoding', 'gzip', 'identity', 'br, gzip', '\xff'],
  ['Authorization', '', 'Bearer', 'Bearer  x', 'bearer x.y', 'OAuth x', 'Basic Og==', 'Basic %%', 'Digest a="b"'],
  ['Authorization', `Bearer ${'a'.repeat(5_000)}`, 'Bearer a, Bearer b', 'Basic Y2xpLW9uY2UwOgA=', '\xff\xfe'],
  ['If-Match', '', '*', '""', 'W/"x"', '"a", "b"', ',', 'x', '"', `"${'x'.repeat(5_000)}"`, '\xff'],
  ['If-None-Match', '', '*', '""', 'W/"x"', '"a", "b"', ',,,', '"', '\xff'],
  [
    'Idempotency-Key',
    '',
    '"',
    '""',
    '"a b"',
    'a b',
    `"${'k'.repeat(256)}"`,
    '"\\""',
    '"first";a=1',
    '"\xe9"',
    '"a", "a"',
  ],
  ['X-Request-Id', '', 'a b', '<x>', 'r'.repeat(129), '\xff', '${jndi:ldap://x}'],
  ['Accept', 'text/event-stream', 'text/html', '*/*;q=0', '', ';', 'text/event-stream, application/json'],
  ['Last-Event-ID', '', '0', '-1', 'x', '1-1', '9-99999999999999999999', '\xff'],
  ['Range', 'bytes=0-', 'bytes=5-1', 'x'],
  ['X-Forwarded-For', '198.51.100.7', 'x', '::1', '127.0.0.1, 198.51.100.7', ',', '\xff', 'a'.repeat(4_000)],
  ['X-Forwarded-Host', 'example.org', '"'],
  ['X-Forwarded-Proto', 'javascript', ''],
  ['X-HTTP-Method-Override', 'DELETE'],
  ['X-Service-OTP', '000000', '\xff', '1'.repeat(1_000)],
  ['Host', 'example.org', 'a b', ''],
  ['Expect', '100-continue', 'x'],
  ['Origin', 'https://example.org', 'null'],
  ['__proto__', 'x'],
  ['X-Padding', 'x'.repeat(12_000), 'x'.repeat(17_000)],
]
