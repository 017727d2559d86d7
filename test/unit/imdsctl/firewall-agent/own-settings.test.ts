import { expect, test } from 'vitest'
import { findContradiction } from '../../../../src/imdsctl/firewall-agent/own-settings.ts'

const LISTENER = { network: 'default', address: '169.254.169.254', port: 80 }
const DOCUMENT = { listeners: [LISTENER], operator: { address: '127.0.0.1', port: 9169 }, link: 'tap-{interfaceId}' }

test('the defaults of the daemon agree with those of the agent; an empty variable is not set', () => {
  expect(findContradiction(DOCUMENT, {})).toBeUndefined()
  expect(findContradiction(DOCUMENT, { IMDS_LISTEN: ' ', IMDS_OPERATOR_LISTEN: '', IMDS_LINK: '' })).toBeUndefined()
})

test('addresses are compared, whatever their notation and their network', () => {
  const six = { network: 'red', address: 'fd00:ec2::254', port: 80 }
  expect(
    findContradiction(
      { ...DOCUMENT, listeners: [LISTENER, six] },
      { IMDS_LISTEN: 'blue=169.254.169.254:80, [FD00:ec2:0::254]:80' },
    ),
  ).toBeUndefined()
  expect(findContradiction({ ...DOCUMENT, listeners: [] }, {})).toBeUndefined()
  expect(
    findContradiction({ ...DOCUMENT, operator: { address: '::1', port: 9 } }, { IMDS_OPERATOR_LISTEN: '[0::1]:9' }),
  ).toBeUndefined()
})

test('link-local listeners are compared, whatever their order and notation', () => {
  const byLink = ['fd00:ec2::1', 'fd00:ec2::2'].map((address) => ({ ...LISTENER, address, linkLocal: true }))
  const env = { IMDS_LISTEN: '[fd00:ec2::1]:80,[fd00:ec2::2]:80', IMDS_LINK_LOCAL: 'FD00:ec2::2, fd00:ec2:0::1' }
  expect(findContradiction({ ...DOCUMENT, listeners: byLink }, env)).toBeUndefined()
})

test.each<[string, object, object, string]>([
  [
    'a link-local listener',
    { listeners: [{ ...LISTENER, linkLocal: true }] },
    {},
    'the link-local listeners 169.254.169.254, and IMDS_LINK_LOCAL of the firewall agent is not set',
  ],
  [
    'no link-local listener',
    {},
    { IMDS_LINK_LOCAL: 'fd00:ec2::1' },
    'the link-local listeners (none), and IMDS_LINK_LOCAL of the firewall agent is fd00:ec2::1',
  ],
  [
    'another address',
    { listeners: [LISTENER, { ...LISTENER, address: '10.77.0.1' }] },
    {},
    'the listener 10.77.0.1:80, and IMDS_LISTEN of the firewall agent is 169.254.169.254:80',
  ],
  ['another port', { listeners: [{ ...LISTENER, port: 22 }] }, {}, 'the listener 169.254.169.254:22, and'],
  [
    'an address that is not an address',
    { listeners: [{ ...LISTENER, address: '169.254.169.254 ' }] },
    {},
    'and IMDS_LISTEN',
  ],
  [
    'any port, with port 0 in the configuration',
    { listeners: [{ ...LISTENER, port: 22 }] },
    { IMDS_LISTEN: '169.254.169.254:0' },
    'the listener 169.254.169.254:22',
  ],
  [
    'another port of operators',
    { operator: { address: '127.0.0.1', port: 22 } },
    {},
    "the operators' listener 127.0.0.1:22, and IMDS_OPERATOR_LISTEN of the firewall agent is 127.0.0.1:9169",
  ],
  [
    "an operators' listener that the agent cannot read",
    {},
    { IMDS_OPERATOR_LISTEN: 'x' },
    'and IMDS_OPERATOR_LISTEN of the firewall agent is x',
  ],
  [
    'another rule for links',
    { link: 'eth0' },
    {},
    'the link rule eth0, and IMDS_LINK of the firewall agent is tap-{interfaceId}',
  ],
])('a document with %s contradicts, and the message names the remedy', (_what, change, own, message) => {
  const contradiction = findContradiction({ ...DOCUMENT, ...change }, own)
  expect(contradiction).toContain(message)
  expect(contradiction).toContain('/etc/imds/imds.env')
})
