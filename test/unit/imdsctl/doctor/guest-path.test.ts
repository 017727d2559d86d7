import { expect, test } from 'vitest'
import { findPaths } from '../../../../src/imdsctl/doctor/guest-path.ts'
import { aLook, GUEST } from '../../../support/fixtures/look.ts'

const OTHER = {
  ...GUEST,
  id: 'srv-b',
  interfaces: [{ ...GUEST.interfaces[0]!, id: 'int-b', ipv4Addresses: ['10.0.0.3'] }],
}

/** Answers ip with these tables. `asked`: the routes that were asked for. */
function aKernel(neighbours: readonly object[], asked: string[] = []) {
  return aLook({
    run: (command, input) => {
      const words = command.join(' ')
      if (input !== undefined) asked.push(input)
      const links = [
        { ifname: 'tap-int-a', flags: ['UP', 'LOWER_UP'], master: 'br0' },
        { ifname: 'br0', flags: ['UP'] },
      ]
      const routes = [{ dst: '10.0.0.2', dev: 'br0' }]
      const rows = words.includes('-batch') ? routes : words.includes('neighbour') ? neighbours : links
      return Promise.resolve({ status: 0, stdout: JSON.stringify(rows) })
    },
  })
}

test('a path that is right has its link with the bridge, its routes and the MAC addresses', async () => {
  const document = { guests: [GUEST, OTHER], link: 'tap-{interfaceId}', listeners: [] }
  const asked: string[] = []
  const look = aKernel([{ dst: '10.0.0.2', dev: 'br0', lladdr: '02:24:19:00:00:0A' }], asked)
  const paths = await findPaths(look, document, [GUEST])
  expect(paths?.map(({ id, steps }) => [id, steps.map(({ name, finding }) => `${name}: ${finding.text}`)])).toEqual([
    [
      'srv-a',
      [
        'link: tap-int-a in br0 is up',
        'route: packets to 10.0.0.2 leave by br0',
        'MAC address: 10.0.0.2 has 02:24:19:00:00:0a, as in its record',
      ],
    ],
  ])
  expect(asked).toEqual(['route get 10.0.0.2\n'])
})

test('a MAC address that the kernel has not learned is not wrong', async () => {
  const [path] =
    (await findPaths(aKernel([]), { guests: [GUEST], link: 'tap-{interfaceId}', listeners: [] }, [GUEST])) ?? []
  expect(path?.steps.at(-1)).toMatchObject({
    name: 'MAC address',
    address: '10.0.0.2',
    finding: { severity: 'ok', text: 'that of 10.0.0.2 is not known: no packet was sent there lately' },
  })
})
