import { execFileSync } from 'node:child_process'
import { linkSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { readRegularFile, readSettingFile } from '../../../src/runtime/regular-file.ts'
import { directoryOfFile } from '../../support/fixtures/temporary-directory.ts'

const directory = directoryOfFile()
const path = (name: string) => join(directory, name)

test('a file up to the limit is read whole, a longer one not at all', async () => {
  writeFileSync(path('file'), 'bytes')
  expect(await readRegularFile(path('file'), 5, 'refuse')).toEqual({ kind: 'read', bytes: Buffer.from('bytes') })
  expect(await readRegularFile(path('file'), 4, 'refuse')).toMatchObject({ kind: 'too-long', length: 5 })
  truncateSync(path('file'), 2 ** 42)
  expect(await readRegularFile(path('file'), 4, 'refuse')).toMatchObject({ kind: 'too-long', length: 2 ** 42 })
  expect(await readRegularFile(path('none'), 4, 'refuse')).toEqual({ kind: 'absent' })
})

test('a link is followed only if the caller wants it, and never to anything but a regular file', async () => {
  writeFileSync(path('target'), 'target')
  symlinkSync('target', path('link'))
  symlinkSync('nowhere', path('dangling'))
  symlinkSync('/dev/zero', path('device'))
  expect(await readRegularFile(path('link'), 9, 'follow')).toEqual({ kind: 'read', bytes: Buffer.from('target') })
  expect(await readRegularFile(path('link'), 9, 'refuse')).toEqual({ kind: 'not-regular', what: 'a symbolic link' })
  expect(await readRegularFile(path('dangling'), 9, 'follow')).toEqual({ kind: 'absent' })
  expect(await readRegularFile(path('device'), 9, 'follow')).toEqual({ kind: 'not-regular', what: 'a device' })
})

test('more FIFOs than the process has threads for files hold up no other file', async () => {
  const names = Array.from({ length: 16 }, (_, i) => path(`fifo${i}`))
  execFileSync('mkfifo', names)
  writeFileSync(path('other'), 'other')
  expect(await Promise.all(names.map((name) => readRegularFile(name, 9, 'follow')))).toEqual(
    names.map(() => ({ kind: 'not-regular', what: 'a FIFO' })),
  )
  expect(await readRegularFile(path('other'), 9, 'follow')).toMatchObject({ kind: 'read' })
})

test('a file that a setting names is read if it is a regular file of bounded length', () => {
  writeFileSync(path('setting'), 'text')
  symlinkSync('setting', path('setting-link'))
  expect(readSettingFile(path('setting')).toString()).toBe('text')
  expect(readSettingFile(path('setting-link')).toString()).toBe('text')
  execFileSync('mkfifo', [path('setting-fifo')])
  symlinkSync('/dev/zero', path('endless'))
  writeFileSync(path('sparse'), '')
  truncateSync(path('sparse'), 2 ** 42)
  for (const [name, links, message] of [
    ['setting-link', 'refuse', 'it is a symbolic link, not a regular file'],
    ['setting-fifo', 'follow', 'it is a FIFO, not a regular file'],
    ['endless', 'follow', 'it is a device, not a regular file'],
    ['sparse', 'follow', 'it has more than 16777216 bytes'],
    ['missing', 'follow', 'ENOENT'],
  ] as const)
    expect(() => readSettingFile(path(name), links)).toThrow(message)
})

test.skipIf(process.getuid?.() !== 0)(
  'root reads no file of another user that the owner of a directory has linked there',
  () => {
    const other = path('of-other')
    execFileSync('install', ['-d', '-o', '65534', other])
    writeFileSync(path('of-root'), 'secret')
    linkSync(path('of-root'), join(other, 'hard'))
    expect(() => readSettingFile(join(other, 'hard'), 'refuse')).toThrow('it is a link to a file of another user')
  },
)

test('a pipe of the shell that starts the command is read to its end', () => {
  const script = `
    import { readSettingFile } from ${JSON.stringify(new URL('../../../src/runtime/regular-file.ts', import.meta.url))}
    process.stdout.write(readSettingFile(process.argv[1]))`
  const args = [
    '-c',
    'exec "$@" <(sleep 0.2; echo late)',
    'bash',
    process.execPath,
    '--input-type=module',
    '-e',
    script,
  ]
  expect(execFileSync('bash', args).toString()).toBe('late\n')
})
