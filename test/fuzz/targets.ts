/**
 * Generates unusual request targets: with escapes (overlong, double, incomplete, of slashes, dots, NUL and non-ASCII
 * characters), slashes, dots, backslashes, hosts and queries, and with lengths around every limit.
 */
import type { Dice } from './dice.ts'

const PATHS = [
  '/latest/meta-data/instance-id',
  '/latest/meta-data/',
  '/latest/user-data',
  '/2009-04-04/meta-data/hostname',
  '/latest/meta-data/public-keys/0/openssh-key',
  '/latest/meta-data/tags/instance/Name',
  '/latest/meta-data/network/interfaces/macs/',
  '/openstack/latest/user_data',
  '/latest/api/token',
  '/latest/dynamic/',
  '/',
  '/1.0/meta-data/local-ipv4',
] as const

/** Pieces that other servers handled wrongly. */
const PIECES = [
  '/',
  '//',
  '/./',
  '/../',
  '..',
  '.',
  '%2e',
  '%2E%2e',
  '%2f',
  '%2F',
  '%5c',
  '\\',
  '..\\',
  '%252f',
  '%252e%252e',
  '%25',
  '%',
  '%2',
  '%zz',
  '%u002f',
  '%00',
  '\x00',
  '%0a',
  '%0d%0a',
  '%09',
  '%7f',
  '%20',
  '+',
  '%c0%af',
  '%c0%2f',
  '%c1%9c',
  '%e0%80%af',
  '%f0%80%80%af',
  '%ed%a0%80',
  '%f4%90%80%80',
  '%ff',
  '%fe%ff',
  '%c3%a9',
  '%C3',
  '%e2%80%8b',
  '%ef%bc%8f',
  'é',
  '\xff',
  '\x80',
  ';',
  ';x=y',
  ';/../',
  '?',
  '#',
  '?a=b',
  '?/../',
  '??',
  '#/x',
  '/~',
  '/*',
  '*',
  '/$',
  '/@',
  ':',
  '/:80',
  '__proto__',
  'constructor',
  '/latest',
  '/meta-data',
  '/user-data',
  '/toString',
  '%5f%5fproto%5f%5f',
  '/etc/passwd',
  '/srv-f0',
  '/127.1.0.1',
  '?ip=127.1.0.1',
  '?recursive=true',
  '?wait_for_change=true&timeout_sec=3600',
] as const

const HOSTS = [
  'http://evil.example',
  'http://127.1.0.1:80',
  'https://[::1]:443',
  'HTTP://169.254.169.254',
  'http://user:secret@169.254.169.254',
  'ftp://x',
  'http://',
  'http:/',
  'http:',
  '//evil.example',
  'javascript://',
  'http://evil.example%2f',
  'h+t.t-p://x',
  'evil.example:80',
  '',
] as const
const LENGTHS = [1, 255, 256, 4_096, 8_192, 16_000, 16_300, 16_370, 16_384, 16_385, 16_400, 20_000, 66_000] as const

/** A known path with up to four changes. */
export function mutatedTarget(dice: Dice): string {
  let target: string = dice.pick(PATHS)
  for (let changes = 1 + dice.below(4); changes > 0; changes--) target = changed(dice, target)
  return target
}

function changed(dice: Dice, target: string): string {
  const at = dice.below(target.length + 1)
  switch (dice.below(8)) {
    case 0:
      return target.replace(/[^]/g, (c) => (dice.chance(0.3) ? percent(c, dice) : c))
    case 1:
      return target.replace(/[^]/g, (c) => (dice.chance(0.2) ? percent(percent(c, dice), dice) : c))
    case 2:
      return dice.pick(HOSTS) + target
    case 3:
      return target.replaceAll('/', dice.pick(['//', '///', '/./', '%2f', '\\', '/%20/', '/%00/', '/']))
    case 4:
      return target.replace(/[a-z]/g, (c) => (dice.chance(0.5) ? c.toUpperCase() : c))
    case 5:
      return (
        target.slice(0, at) +
        dice.pick(['a', '/', '%61', '../', '%2e%2e/', '?', 'é']).repeat(dice.pick(LENGTHS) / (1 + dice.below(6))) +
        target.slice(at)
      )
    default:
      return target.slice(0, at) + dice.pick(PIECES) + target.slice(at)
  }
}

function percent(text: string, dice: Dice): string {
  return text.replace(/[^]/g, (c) => {
    const hex = c.charCodeAt(0).toString(16).padStart(2, '0')
    return `%${dice.chance(0.5) ? hex : hex.toUpperCase()}`
  })
}
