/**
 * Removes the values of variables from what systemd prints, unless the variable is known to be public. A value ends where
 * systemd's quotes say, so everything to the end of the line is removed: too much rather than too little.
 */
import { WORD } from '../runtime/unit-file.ts'
import { REMOVED } from './redact.ts'

/** Whether a bug report may have the value of a variable. */
export type IsPublic = (name: string, value: string) => boolean

/** The path of a file, as `systemctl cat` prints it above the file's text. */
const PATH = /^# \/\S+\.(?:service|socket|conf)$/
const SECTION = /^\[[A-Za-z]+\]$/
/** A setting of a unit. systemd's names have capitals and small letters, those of variables usually do not. */
const SETTING = /^([A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*\s*=\s*)(.*)$/s
const ASSIGNMENT = /(?<![\w.-])[\w.-]+\s*=/g
/** What systemd prints of the end of a process, and options of Node.js in the command of a service. */
const HARMLESS = /^(?:code=(?:exited|killed|dumped)\b|status=\d+|signal=[A-Z0-9]+\b|--max-[a-z-]+=\d+(?!\S))/
/** systemd quotes what it ignores of a file. */
const IGNORED = /(\bignoring(?:: | invalid environment assignment ')).*/i

/** Removes comments and the values of variables from units, as `systemctl cat` prints them. */
export function redactUnits(text: string, isPublic: IsPublic): string {
  const lines: string[] = []
  let isContinued = false
  for (const line of text.split('\n').map((one) => one.trim())) {
    if (/^[#;]/.test(line)) {
      if (PATH.test(line) && !isContinued) lines.push(line)
      continue
    }
    if (isContinued) lines.push(`${String(lines.pop()).slice(0, -1)} ${line}`)
    else lines.push(line)
    isContinued = line.endsWith('\\')
  }
  return lines.map((line) => redactSetting(line, isPublic)).join('\n')
}

/** Removes the values of variables from lines of a journal, and of `systemctl status`. */
export function redactLines(text: string, isPublic: IsPublic): string {
  return text
    .split('\n')
    .map((line) => cutAssignments(line.replace(IGNORED, `$1${REMOVED}`), isPublic))
    .join('\n')
}

function redactSetting(line: string, isPublic: IsPublic): string {
  if (line === '' || PATH.test(line) || SECTION.test(line)) return line
  const [, setting, value] = SETTING.exec(line) ?? []
  if (setting === undefined || value === undefined || setting.startsWith('SetCredential')) return REMOVED
  return setting + (/^Environment\s*=/.test(setting) ? cutWords(value, isPublic) : cutAssignments(value, isPublic))
}

/** Removes everything after the first words that are public assignments. */
function cutWords(value: string, isPublic: IsPublic): string {
  let kept = 0
  const next = new RegExp(WORD, 'y')
  for (;;) {
    const [word] = next.exec(value) ?? []
    if (word === undefined || !isPublicWord(word.replace(/["']/g, ''), isPublic)) break
    kept = next.lastIndex
    while (/\s/.test(value[next.lastIndex] ?? '')) next.lastIndex += 1
  }
  return kept === value.length ? value : `${value.slice(0, kept)} ${REMOVED}`.trimStart()
}

/** Removes everything after the name of the first variable that is not public. */
function cutAssignments(value: string, isPublic: IsPublic): string {
  for (const { 0: found, index } of value.matchAll(ASSIGNMENT)) {
    const rest = value.slice(index)
    if (!HARMLESS.test(rest) && !isPublicWord(rest, isPublic)) return value.slice(0, index) + found + REMOVED
  }
  return value
}

function isPublicWord(word: string, isPublic: IsPublic): boolean {
  const [, name, value] = /^([A-Za-z_]\w*)=["']?(.*)$/s.exec(word) ?? []
  return name !== undefined && value !== undefined && isPublic(name, value)
}
