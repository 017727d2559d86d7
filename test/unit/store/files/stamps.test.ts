import { readdirSync, rmSync, statSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { listFiles, lookUpStamps } from '../../../../src/store/files/stamps.ts'
import { directoryOfFile } from '../../../support/fixtures/temporary-directory.ts'

const directory = directoryOfFile()

test('the files of a directory are listed by instance, and other files are left out', async () => {
  for (const name of ['srv-b.json', 'srv-a.user-data', 'srv-a.json', '.publisher.json', 'notes.txt'])
    writeFileSync(join(directory, name), '')
  expect([...(await listFiles(directory))]).toEqual([
    ['srv-a', ['.json', '.user-data']],
    ['srv-b', ['.json']],
  ])
})

describe('stamps', () => {
  const stampsAt = async (id: string, nowMs: number) => lookUpStamps(directory, id, ['.json', '.removed'], nowMs)

  test('change with each file, also if its length and the time of its modification stay', async () => {
    const path = join(directory, 'srv-c.json')
    expect(await stampsAt('srv-c', 1000)).toEqual({ text: '', isRecent: false, changedAtMs: 0 })
    const texts = new Set<string>()
    for (const change of [
      () => writeFileSync(path, 'a'),
      () => writeFileSync(path, 'ab'),
      () => writeFileSync(join(directory, 'srv-c.removed'), '1'),
      () => writeFileSync(path, 'cd'),
    ]) {
      await new Promise((resolve) => setTimeout(resolve, 20)) // another tick of the file system's clock
      change()
      utimesSync(path, 1000, 1000)
      texts.add((await stampsAt('srv-c', 1000)).text)
    }
    expect(texts.size).toBe(4)
    for (const name of readdirSync(directory)) rmSync(join(directory, name))
  })

  test('are recent for two seconds, and not if the clock was set back since; the age is that of the content', async () => {
    const path = join(directory, 'srv-e.json')
    writeFileSync(path, 'a')
    utimesSync(path, 1000, 1000)
    const changedMs = Number(statSync(path, { bigint: true }).ctimeMs)
    const isRecent = [-3_600_000, -2_000, -1_999, 0, 1_999, 2_000].map(
      async (laterMs) => (await stampsAt('srv-e', changedMs + laterMs)).isRecent,
    )
    expect(await Promise.all(isRecent)).toEqual([false, false, true, true, true, false])
    expect(await stampsAt('srv-e', changedMs)).toMatchObject({ changedAtMs: 1_000_000 })
    rmSync(path)
  })

  test('of a file that cannot be looked up are always recent, so that it is read again', async () => {
    symlinkSync('srv-d.json', join(directory, 'srv-d.json'))
    expect(await stampsAt('srv-d', Date.now())).toMatchObject({ text: '.json:ELOOP', isRecent: true })
    rmSync(join(directory, 'srv-d.json'))
  })
})
