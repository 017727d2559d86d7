import { expect, test } from 'vitest'
import { parseConfig } from '../../../../src/imdsd/config.ts'
import { clock, units } from '../../../../src/imdsctl/doctor/checks-of-hypervisor.ts'
import { commands, linesOf, settingsOf, VARIABLES } from '../../../support/fixtures/look.ts'

const unit = (name: string, change: Readonly<Record<string, string>> = {}) =>
  Object.entries({
    Id: name,
    LoadState: 'loaded',
    UnitFileState: 'enabled',
    ActiveState: 'active',
    NeedDaemonReload: 'no',
    ...change,
  })
    .map(([key, value]) => `${key}=${value}\n`)
    .join('')
const systemctl = (...shown: string[]) => ({ run: commands({ 'systemctl show': shown.join('\n') }) })

test('units that are missing, stopped, not enabled or changed are named', async () => {
  const found = await linesOf(
    units,
    systemctl(
      unit('imds.service', { ActiveState: 'failed' }),
      unit('imds.socket', { UnitFileState: 'disabled' }),
      unit('imds-address.service', { UnitFileState: 'disabled', NeedDaemonReload: 'yes' }),
    ),
  )
  expect(found).toEqual([
    'failure imds.service does not run (failed)',
    'warning imds.socket runs and is not enabled: it does not start at boot',
    'warning imds-address.service has changed on the disk since it was loaded',
  ])
  expect(await linesOf(units, systemctl(unit('imds.service')))).toContain(
    'warning imds.socket is not installed (unknown)',
  )
  expect(await linesOf(units, {})).toEqual(['ok not checked: systemd does not run here'])
})

test('a masked unit is named, except that of the address, which operators mask on purpose', async () => {
  const masked = { LoadState: 'masked', UnitFileState: 'masked' }
  const found = await linesOf(
    units,
    systemctl(
      unit('imds.service', { ...masked, ActiveState: 'inactive' }),
      unit('imds.socket', masked),
      unit('imds-address.service', { ...masked, ActiveState: 'inactive' }),
    ),
  )
  expect(found).toEqual([
    'failure imds.service is masked, so it cannot start',
    'warning imds.socket is masked, so it cannot start',
    'ok imds-address.service is masked: the address comes from elsewhere',
  ])
})

test('the socket of each network of IMDS_LISTEN and the firewall that is required must run', async () => {
  const IMDS_LISTEN = '169.254.169.254:80,blue=169.254.169.254:80,red=169.254.169.254:80,red=[fd00:ec2::254]:80'
  const parsed = parseConfig({ ...VARIABLES, IMDS_LISTEN, IMDS_FIREWALL: 'required' }, [{ fd: 3, name: 'blue' }])
  if (!parsed.ok) throw new Error('not valid')
  const settings = settingsOf({}, { config: parsed.value })
  const found = await linesOf(units, {
    settings,
    ...systemctl(
      unit('imds.service'),
      unit('imds-network@blue.socket'),
      unit('imds-network@red.socket', { ActiveState: 'inactive' }),
      unit('imds-address.service'),
      unit('imds-firewall.service', { ActiveState: 'inactive' }),
    ),
  })
  expect(found).toEqual([
    'ok imds.service runs',
    'ok imds-network@blue.socket runs',
    'failure imds-network@red.socket does not run (inactive)',
    'ok imds-address.service runs',
    'failure imds-firewall.service does not run (inactive)',
  ])
})

test('imds.socket is not missed where IMDS_LISTEN names several networks, which it would replace', async () => {
  const settings = settingsOf({
    IMDS_LISTEN: 'red=169.254.169.254:80,blue=10.0.0.9:80',
    IMDS_FIREWALL: 'required',
  })
  const shown = ['imds.service', 'imds-address.service', 'imds-firewall.service'].map((name) => unit(name))
  expect(await linesOf(units, { settings, ...systemctl(...shown) })).toEqual([
    'ok imds.service runs',
    'ok imds-address.service runs',
    'ok imds-firewall.service runs',
  ])
})

test('a clock that is not synchronised is a warning', async () => {
  expect(await linesOf(clock, { run: commands({ timedatectl: 'yes\n' }) })).toEqual(['ok it is synchronised'])
  expect(await linesOf(clock, { run: commands({ timedatectl: 'no\n' }) })).toEqual(['warning it is not synchronised'])
  expect(await linesOf(clock, {})).toEqual([])
})
