import { expect, test } from 'vitest'
import { formatIdentityDocument, IdentityDocument } from '../../../src/metadata/identity-document.ts'
import { parsed } from '../../support/fixtures/guest-server.ts'
import { anInstance } from '../../support/fixtures/instance.ts'

const INSTANCE = parsed(anInstance({ architecture: 'x86_64', launchTime: '2026-11-20T16:04:05.25+01:00' }))

test('H3: the document has the fields and the layout of EC2, with the time in UTC', () => {
  expect(formatIdentityDocument(INSTANCE)).toBe(`{
  "accountId" : "acc-xyz12",
  "architecture" : "x86_64",
  "availabilityZone" : "gb1-a",
  "imageId" : "img-4ltjf",
  "instanceId" : "srv-abcde",
  "instanceType" : "2gb.ssd",
  "pendingTime" : "2026-11-20T15:04:05Z",
  "privateIp" : "10.0.0.2",
  "region" : "gb1",
  "version" : "2017-09-30"
}`)
})

test('H3: a field without a value is left out', () => {
  const nic = { id: 'int-a', macAddress: '02:24:19:00:00:01', ipv6Addresses: ['fd00::2/64'] }
  const document = JSON.parse(formatIdentityDocument(parsed(anInstance({ interfaces: [nic] })))) as object
  expect(Object.keys(document)).not.toContain('pendingTime')
  expect(Object.keys(document)).not.toContain('architecture')
  expect(Object.keys(document)).not.toContain('privateIp')
})

test('H3: a document is signed once, however many ask for it, and again after a failure', async () => {
  let calls = 0
  const document = new IdentityDocument(INSTANCE, {
    sign: (text) =>
      ++calls === 1
        ? Promise.reject(new Error('no thread'))
        : Promise.resolve({ signature: 's', pkcs7: `p ${text.length}` }),
  })
  expect(calls).toBe(0)
  expect(document.content('document').body).toBe(formatIdentityDocument(INSTANCE))
  expect(() => document.content('signature')).toThrow('not signed yet')
  await expect(document.prepare()).rejects.toThrow('no thread')
  await Promise.all([document.prepare(), document.prepare()])
  expect([document.prepare(), calls]).toEqual([undefined, 2])
  expect(document.content('signature').body).toBe('s')
  expect(document.content('rsa2048')).toBe(document.content('pkcs7'))
})
