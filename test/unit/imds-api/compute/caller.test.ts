import { Socket } from 'node:net'
import type { PeerCertificate } from 'node:tls'
import { expect, test } from 'vitest'
import { mayActFor, namesOfCertificate } from '../../../../src/imds-api/compute/caller.ts'

const names = (CN: string | string[] | undefined, subjectaltname?: string) =>
  namesOfCertificate({ subject: { CN }, ...(subjectaltname !== undefined && { subjectaltname }) } as PeerCertificate)

test('a certificate names its common name and its DNS names', () => {
  expect(names('hv-1')).toEqual(['hv-1'])
  expect(names('hv-1', 'DNS:hv-1.example.com, IP Address:10.0.0.1, DNS:hv-1, URI:spiffe://x')).toEqual([
    'hv-1',
    'hv-1.example.com',
    'hv-1',
  ])
  expect(names(undefined, 'DNS:hv-1')).toEqual(['hv-1'])
})

test('nothing in a name or beside one makes it another name', () => {
  expect(names(['hv-1', 'hv-2'])).toEqual([])
  expect(names('a', 'DNS:"a, DNS:hv-2, b", DNS:hv-1')).toEqual(['a', '"a, DNS:hv-2, b"', 'hv-1'])
  expect(names('a', 'DNS:"a\\", DNS:hv-2, b"')).toEqual(['a', '"a\\", DNS:hv-2, b"'])
  expect(names('a', 'URI:http://x/DNS:hv-2, email:x@DNS')).toEqual(['a'])
  expect(names('*')).toEqual(['*'])
  expect(namesOfCertificate({} as PeerCertificate)).toEqual([])
})

test('without TLS the caller may act for every hypervisor', () => expect(mayActFor(new Socket(), 'hv-1')).toBe(true))
