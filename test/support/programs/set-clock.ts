/**
 * Loaded into a process by `--import`: moves its wall clock ahead by the milliseconds in the file CLOCK_FILE, which is read each time.
 */
import { readFileSync } from 'node:fs'

const real = Date.now
const path = process.env['CLOCK_FILE'] ?? ''
Date.now = () => real() + Number(readFileSync(path, 'utf8'))
