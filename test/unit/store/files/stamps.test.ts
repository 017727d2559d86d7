import { mkdtempSync, rmSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { forEachOf, listFiles, lookUpStamps } from '../../../../src/store/files/stamps.ts'

const directory = mkdtempSync(join(tmpdir(), 'imds-stamps-'))
afterAll(() => { rmSync(directory, { recursive: true }) })

test('the files of a directory are listed by instance, and other files are left out', async () => {
  for (const name of ['srv-b.json', 'srv-a.user-data', 'srv-a.json', '.publisher.json', 'notes.txt']) writeFileSync(join(directory, name), '')
  expect([...await listFiles(directory)]).toEqual([['srv-a', ['.json', '.user-data']], ['srv-b', ['.json']]])
})

test('a stamp changes with each file, and a file that changed within two seconds is recent', async () => {
  const path = join(directory, 'srv-c.json')
  const at = (seconds: number) => { utimesSync(path, seconds, seconds) }
  const stamps = (nowSeconds: number) => lookUpStamps(directory, 'srv-c', ['.json', '.removed'], nowSeconds * 1000)
  expect(await stamps(1000)).toEqual({ text: '', isRecent: false, changedAtMs: 0 })
  writeFileSync(path, 'a')
  at(1000)
  const first = await stamps(1002)
  expect(first).toMatchObject({ isRecent: false, changedAtMs: 1_000_000 })
  expect((await stamps(1001.999)).isRecent).toBe(true)
  const texts = new Set([first.text])
  at(1000.001)
  texts.add((await stamps(1002)).text)
  writeFileSync(path, 'ab')
  at(1000.001)
  texts.add((await stamps(1002)).text)
  writeFileSync(join(directory, 'srv-c.removed'), '1')
  texts.add((await stamps(1002)).text)
  expect(texts.size).toBe(4)
})

test('a file that cannot be looked up is always recent, so that it is read again', async () => {
  symlinkSync('srv-d.json', join(directory, 'srv-d.json'))
  expect(await lookUpStamps(directory, 'srv-d', ['.json'], Date.now())).toMatchObject({ text: '.json:ELOOP', isRecent: true })
})

test('no more tasks run at the same time than allowed', async () => {
  let [running, most, done] = [0, 0, 0]
  await forEachOf(Array.from({ length: 50 }, (_, i) => i), async () => {
    most = Math.max(most, ++running)
    await new Promise(setImmediate)
    running -= 1
    done += 1
  }, 7)
  expect([most, done]).toEqual([7, 50])
})
