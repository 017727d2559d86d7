/**
 * The status page on the operators' socket, in a browser by a tunnel of ssh: hostile records, and the search.
 */
import { spawn } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { get as getOverHttp } from 'node:http'
import t, { type Test } from 'tap'
import { openStore } from '../../src/store/open.ts'
import { startBrowser, watch } from '../support/browser.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { request, startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { must } from '../support/programs/processes.ts'
import { shortDirectory, testDirectory } from '../support/test-directory.ts'
import { executed } from '../tools/documents.ts'
import { without } from '../support/packages.ts'
import { freePort } from '../support/redis/redis.ts'

const HOSTILE = `"><img src=x onerror=alert(1)><script>alert(2)</script>`

/** A daemon that serves 60 instances. The guest at 127.0.0.1 is srv-hostile, and sends a hostile user agent. */
async function aDaemon(t: Test): Promise<TestDaemon> {
  const directory = testDirectory(t, { store: {} })
  const url = `file:${join(directory, 'store')}`
  const store = await openStore({ url })
  for (let i = 1; i < 60; i++)
    await store.put(
      anInstance({
        id: `srv-${String(i).padStart(5, '0')}`,
        interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`10.0.0.${i}/24`] }],
      }),
    )
  await store.put(
    anInstance({
      id: 'srv-hostile',
      interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['127.0.0.1/8'] }],
      serverGroups: [{ id: 'grp-sda44', name: HOSTILE }],
      tags: { name: HOSTILE },
    }),
    Buffer.from('a-secret-in-user-data'),
  )
  await store.close()
  const daemon = await startDaemon(t, { IMDS_STORE: url })
  await until(async () => (await daemon.get('/latest/user-data')).status === 200, 'the instances')
  for (const path of ['/latest/meta-data/instance-id', '/latest/user-data', '/latest/nothing'])
    await asGuest(daemon, path)
  return daemon
}

function asGuest({ guestPort: port }: TestDaemon, path: string): Promise<unknown> {
  return new Promise((resolve, reject) => {
    getOverHttp({ host: '127.0.0.1', port, path, headers: { 'user-agent': HOSTILE }, agent: false }, (response) => {
      response.resume().on('end', resolve)
    }).on('error', reject)
  })
}

/** Starts a server of ssh, runs the documented command, and returns the address of the page in a browser. */
async function aTunnel(t: Test): Promise<string> {
  const directory = shortDirectory(t)
  const [host, key] = [join(directory, 'host'), join(directory, 'key')]
  for (const file of [host, key]) await must(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', file])
  mkdirSync('/run/sshd', { recursive: true }) // as its unit does
  const [port, local] = [await freePort(), await freePort()]
  const options = ['UsePAM=no', 'StrictModes=no', 'PidFile=none', `AuthorizedKeysFile=${key}.pub`]
  const server = [...['-D', '-f', '/dev/null', '-h', host], ...options.flatMap((one) => ['-o', one])]
  const client = `-F none -i ${key} -p ${port} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null`
  const command = executed('docs/operations/tools.md', 'status page')
    .replace('9169:/run/imds/operator.sock', `${local}:${daemon.operatorSocket.replace('unix:', '')}`)
    .replace('HYPERVISOR', '127.0.0.1')
  for (const [program, ...args] of [
    ['/usr/sbin/sshd', '-o', `ListenAddress=127.0.0.1:${port}`, ...server],
    ['sh', '-c', `ssh() { command ssh ${client} "$@"; }; until ${command.trim()}; do sleep 0.1; done`],
  ] as const) {
    const child = spawn(program, args, { stdio: 'ignore', detached: true })
    t.teardown(() => process.kill(-child.pid!))
  }
  const url = `http://localhost:${local}/`
  await until(async () => (await request(local, '/livez').catch(() => undefined))?.status === 200, 'the tunnel')
  return url
}

const daemon = await aDaemon(t)
const withoutTunnel = without('chromium', 'sshd') || (process.getuid?.() !== 0 && 'needs root')
const url = withoutTunnel === false ? await aTunnel(t) : ''

t.test(
  'a browser shows the page by ssh, which loads and runs nothing, whatever records and guests say',
  { skip: withoutTunnel },
  async (t) => {
    const browser = await startBrowser()
    t.teardown(() => browser.close())
    const page = await browser.newPage({ colorScheme: 'light' })
    const watched = watch(page)
    const ids = () => page.locator('td[data-of=instance] a').allTextContents()

    await page.goto(url)
    t.match(await page.title(), /^(ok|warning): imds$/)
    t.equal((await ids()).length, 50)
    await page.getByRole('link', { name: 'next' }).click()
    t.same((await ids()).at(-1), 'srv-hostile')

    await page.getByRole('searchbox').fill('10.0.0.7')
    await page.getByRole('button').click()
    t.same(await ids(), ['srv-00007'])
    await page.getByRole('searchbox').fill(HOSTILE)
    await page.getByRole('button').click()
    t.same(await ids(), [])
    t.equal(await page.getByRole('searchbox').inputValue(), HOSTILE)

    await page.getByRole('link', { name: 'all', exact: true }).click()
    await page.getByRole('searchbox').fill('hostile')
    await page.getByRole('button').click()
    await page.getByRole('link', { name: 'srv-hostile' }).click()
    t.equal(await page.getByText('Requests of srv-hostile').count(), 1)
    const agents = page.locator('td[data-of="user agent"]', { hasText: HOSTILE })
    t.equal(await agents.count(), 3, 'the user agent is text')
    t.notMatch(await page.content(), /a-secret-in-user-data|AAAAC3NzaC1lZDI1NTE5/)

    t.same([watched.dialogs, watched.errors], [[], []])
    t.same(new Set(watched.requests.map((one) => one.replace(/\?.*/, ''))), new Set([url]))

    await page.evaluate(`document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="document.title = 1">');
    document.body.append(Object.assign(document.createElement('script'), { textContent: 'document.title = 2' }))`)
    t.match(await page.title(), /imds$/, 'the policy stops what would get past the escaping')
    t.match(watched.errors.join(), /inline script violates the following Content Security Policy/)
  },
)
