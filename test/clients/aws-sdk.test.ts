/** The AWS SDK for JavaScript reads the tree (docs/clients.md#aws-sdks). */
import { MetadataService } from '@aws-sdk/ec2-metadata-service'
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until } from '../support/programs/daemon.ts'
import { must, run } from '../support/programs/processes.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { shortDirectory } from '../support/test-directory.ts'

const ADA = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD ada@example'
const ABSENT = '/latest/meta-data/spot/instance-action'

t.test('the AWS SDK', async (t) => {
  const directory = shortDirectory(t)
  const url = `file:${directory}`
  const store = await openStore({ url })
  const interfaces = [{ id: 'int-aaaaa', macAddress: '02:00:00:00:00:01', ipv4Addresses: ['127.0.0.1/8'] }]
  t.match(
    await store.put(
      anInstance({ interfaces, publicKeys: [{ user: 'usr-adaaa', key: ADA }] }),
      Buffer.from('#cloud-config\n# grüß\n'),
    ),
    { kind: 'published' },
  )
  const daemon = await startDaemon(t, { IMDS_STORE: url })
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'the daemon to be ready')
  const endpoint = `http://127.0.0.1:${daemon.guestPort}`

  t.test('reads the tree with a session token that it requests itself, and with double slashes', async (t) => {
    const service = new MetadataService({ endpoint, retries: 0, ec2MetadataV1Disabled: true })
    const get = (path: string) => service.request(path, {})
    t.equal(await get('/latest/meta-data/instance-id'), 'srv-abcde')
    t.equal(await get('latest/meta-data/instance-id'), 'srv-abcde')
    t.equal(await get('/latest/meta-data/public-keys/'), '0=usr-adaaa')
    t.equal(await get('/latest/meta-data/public-keys/0/openssh-key'), `${ADA}\n`)
    t.equal(await get('/latest/meta-data/placement/availability-zone/'), 'gb1-a')
    t.equal(await get('/latest/user-data'), '#cloud-config\n# grüß\n')
    t.equal(await daemon.metric('imds_session_requests_total{session="token"}'), 6, 'each request had a token')
    t.equal(await daemon.metric('imds_session_requests_total{session="none"}'), 0)
  })

  t.test('gets a 404 for a path that does not exist', async (t) => {
    const service = new MetadataService({ endpoint, disableFetchToken: true })
    t.match(await service.request(ABSENT, {}).catch((error: unknown) => error), { $metadata: { httpStatusCode: 404 } })
    t.equal(
      await daemon.metric(
        'imds_requests_total{route="/{version}/meta-data",method="GET",status="404",reason="not-found"}',
      ),
      1,
      'the SDK does not retry',
    )
  })

  t.test('works when tokens are required, and gets 401 without a token', async (t) => {
    t.match(await store.put(anInstance({ revision: 2, interfaces, options: { httpTokens: 'required' } })), {
      kind: 'published',
    })
    const curl = async (...args: string[]) =>
      (
        await must([
          'curl',
          '-s',
          '-o',
          '/dev/null',
          '-w',
          '%{http_code}',
          ...args,
          `${endpoint}/latest/meta-data/instance-id`,
        ])
      ).toString()
    await until(async () => (await curl()) === '401', 'tokens to be required')
    t.equal(
      await new MetadataService({ endpoint, retries: 0 }).request('/latest/meta-data/instance-id', {}),
      'srv-abcde',
    )
    await t.rejects(
      new MetadataService({ endpoint, retries: 0, disableFetchToken: true }).request(
        '/latest/meta-data/instance-id',
        {},
      ),
      /status code 401/,
    )
    const token = (
      await must([
        'curl',
        '-sf',
        '-X',
        'PUT',
        '-H',
        'X-aws-ec2-metadata-token-ttl-seconds: 21600',
        `${endpoint}/latest/api/token`,
      ])
    ).toString()
    t.equal(
      await curl('-H', `X-aws-ec2-metadata-token: ${token}`),
      '200',
      'a shell script with curl gets and uses a token',
    )
    t.match(await store.put(anInstance({ revision: 3, interfaces })), { kind: 'published' })
    await until(async () => (await curl()) === '200', 'tokens to be optional')
  })

  t.test('A5: does not keep its program from exiting, because the daemon closes idle connections', async (t) => {
    const program = `
      import { MetadataService } from '@aws-sdk/ec2-metadata-service'
      const service = new MetadataService({ endpoint: ${JSON.stringify(endpoint)}, retries: 0 })
      await service.request('${ABSENT}', {}).catch((error) => console.log(error.$metadata.httpStatusCode))`
    const { status, stdout, stderr } = await run([process.execPath, '--input-type=module', '--eval', program])
    t.equal(stderr, '')
    t.equal(stdout.toString(), '404\n')
    t.equal(status, 0)
  })

  t.test('A5: curl with HTTP/1.0 and curl without a Host header get the same response', async (t) => {
    const curl = async (...args: string[]) =>
      (await must(['curl', '-sf', ...args, `${endpoint}/latest/meta-data/instance-id`])).toString()
    t.equal(await curl('--http1.0'), 'srv-abcde')
    t.equal(await curl('--http1.0', '-H', 'Host:'), 'srv-abcde')
    t.equal(await curl('-H', 'Host:'), 'srv-abcde')
  })
})
