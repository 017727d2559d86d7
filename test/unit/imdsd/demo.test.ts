import { existsSync, readdirSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterEach, expect, test, vi } from 'vitest'
import { parseConfig } from '../../../src/imdsd/config.ts'
import { prepareDemo, type Demo } from '../../../src/imdsd/demo.ts'
import { loadFiles } from '../../../src/store/files/load.ts'
import { validate } from '../../../src/imdsd/view/validate.ts'

const demos: Demo[] = []
afterEach(() => {
  for (const demo of demos.splice(0)) demo.clean()
})

async function aDemo(env: Record<string, string> = {}): Promise<Demo & { env: Record<string, string> }> {
  const demo = await prepareDemo(env)
  demos.push(demo)
  return demo as Demo & { env: Record<string, string> }
}

test("the demo's record is valid, is found at 127.0.0.1, and has user-data", async () => {
  const { env } = await aDemo()
  const loaded = await loadFiles(fileURLToPath(env['IMDS_STORE']!), 'srv-demo1')
  if (loaded.kind !== 'record') throw new Error(loaded.kind)
  const assembled = validate(loaded, 16_384)
  expect(assembled).toMatchObject({
    ok: true,
    value: { instance: { id: 'srv-demo1', interfaces: [{ network: 'default', ipv4Addresses: ['127.0.0.1/8'] }] } },
  })
  expect(Buffer.from(loaded.userData!).toString()).toMatch(/^#cloud-config\n/)
})

test('its environment is a valid configuration that listens on 127.0.0.1 only', async () => {
  const { env } = await aDemo()
  expect(parseConfig(env)).toMatchObject({
    ok: true,
    unknown: [],
    value: { listen: [{ host: '127.0.0.1' }], operator: { host: '127.0.0.1' }, store: { kind: 'files' } },
  })
})

test('variables that are set are kept, and empty ones are not; a store of the operator is not written', async () => {
  const { env } = await aDemo({ IMDS_LISTEN: '127.0.0.1:1', IMDS_LOG_LEVEL: '', IMDS_STORE: 'redis://r' })
  expect(env).toMatchObject({
    IMDS_LISTEN: '127.0.0.1:1',
    IMDS_OPERATOR_LISTEN: '127.0.0.1:9169',
    IMDS_STORE: 'redis://r',
  })
  expect(env).not.toHaveProperty('IMDS_LOG_LEVEL')
  expect(readdirSync(env['IMDS_STATE_DIR']!.replace(/\/state$/, ''))).toEqual([])
})

test('each demo has its own files, and cleaning deletes all of them', async () => {
  const [one, two] = [await aDemo(), await aDemo()]
  expect(one.env['IMDS_STORE']).not.toBe(two.env['IMDS_STORE'])
  one.clean()
  expect([one, two].map(({ env }) => existsSync(fileURLToPath(env['IMDS_STORE']!)))).toEqual([false, true])
  expect(existsSync(one.env['IMDS_STATE_DIR']!.replace(/\/state$/, ''))).toBe(false)
})

test('it announces commands for the addresses on which the daemon listens', async () => {
  const print = vi.spyOn(console, 'log').mockImplementation(() => undefined)
  try {
    ;(await aDemo()).announce('127.0.0.1:4711', '127.0.0.1:4712')
    ;(await aDemo({ IMDS_STORE: 'redis://r' })).announce('127.0.0.1:4711', '127.0.0.1:4712')
    const [own, foreign] = print.mock.calls.map(([text]) => String(text))
    expect(own).toContain('curl http://127.0.0.1:4711/latest/meta-data/')
    expect(own).toContain('curl http://127.0.0.1:4712/metrics')
    expect([own?.includes('imdsctl'), foreign?.includes('imdsctl')]).toEqual([true, false])
  } finally {
    print.mockRestore()
  }
})
