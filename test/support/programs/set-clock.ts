/**
 * Loaded into a process that a test starts (`--import`): its wall clock is ahead by as many ms as the file CLOCK_FILE holds, read each time.
 */
import { readFileSync } from 'node:fs'

const real = Date.now
const path = process.env['CLOCK_FILE'] ?? ''
Date.now = () => real() + Number(readFileSync(path, 'utf8'))
